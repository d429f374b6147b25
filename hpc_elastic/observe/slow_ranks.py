"""Says how fast the ranks go and which of them are behind the others, from the steps in samples; pure.

The samples of two nodes are of two moments, up to ten seconds apart: in that time a run may do hundreds of steps. So
a rank's step is first moved to the moment of the latest sample, as if the rank had gone on as fast as the median.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

LEAST_BEHIND = 2.0  # steps: ranks that wait for each other differ by one
TOLERANCE_S = 1.0  # how far samples and heartbeats are apart without any rank being slow


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSeen:
    """The step of a rank at one moment, in Unix seconds; its last heartbeat was `age_s` before."""

    rank: int
    node: str
    step: int
    at: float
    age_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRank:
    """A rank that is behind the median of all ranks by so many steps."""

    rank: int
    node: str
    step: int
    behind: float
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Where a run is: the median step, the steps a second (None if unknown) and the slow ranks, the slowest first."""

    step: int | None = None
    rate: float | None = None
    slow: tuple[SlowRank, ...] = ()


def find_pace(seen: Sequence[RankSeen]) -> Pace:
    """Return the pace of the ranks, from one or two sightings of each.

    Args:
        seen: the sightings, in any order; of several of a rank the latest two count.
    """
    by_rank: dict[int, list[RankSeen]] = {}
    for each in sorted(seen, key=lambda each: each.at):
        by_rank.setdefault(each.rank, []).append(each)
    if not by_rank:
        return Pace()
    rates = [
        max(0.0, (two[-1].step - two[-2].step) / (two[-1].at - two[-2].at))
        for two in by_rank.values()
        if len(two) > 1 and two[-1].at > two[-2].at
    ]
    rate = median(rates) if rates else None
    latest = [sightings[-1] for sightings in by_rank.values()]
    now = max(each.at for each in latest)
    moved = {each.rank: each.step + (rate or 0.0) * (now - each.at) for each in latest}
    middle = median(moved.values())
    # Without a rate nothing is known of samples of different moments.
    least = max(LEAST_BEHIND, (rate or 0.0) * TOLERANCE_S)
    is_comparable = rate is not None or max(each.at for each in latest) == min(each.at for each in latest)
    slow = [
        SlowRank(
            rank=each.rank,
            node=each.node,
            step=each.step,
            behind=round(middle - moved[each.rank], 1),
            age_s=each.age_s,
        )
        for each in latest
        if is_comparable and middle - moved[each.rank] >= least
    ]
    return Pace(
        step=int(median(each.step for each in latest)),
        rate=None if rate is None else round(rate, 3),
        slow=tuple(sorted(slow, key=lambda each: (-each.behind, each.rank))),
    )


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
