"""Says in words how fast the ranks go, and which of them is behind the others."""

from __future__ import annotations

from hpc_elastic.failures.pace import Pace


def describe_pace(pace: Pace) -> str:
    """Return the pace in words; empty if no rank says where it is."""
    if pace.step is None:
        return ""
    if pace.rate is None:
        return f"{pace.step}"
    if pace.rate >= 1 or pace.rate == 0:
        return f"{pace.step}, {pace.rate:.3g} a second"
    return f"{pace.step}, one in {1 / pace.rate:.3g} s"


def describe_slow(pace: Pace) -> str:
    """Return the slowest rank in words; empty if none is behind."""
    if not pace.slow:
        return ""
    first = pace.slow[0]
    others = f", and {len(pace.slow) - 1} more behind" if len(pace.slow) > 1 else ""
    return f"rank {first.rank} on {first.node}: {first.behind:g} steps behind the median, at {first.step}{others}"
