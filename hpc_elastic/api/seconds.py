"""Checks the durations that the Python API is given in seconds: each comparison with NaN is false, so it never ends."""

from __future__ import annotations

from numbers import Real

from hpc_elastic.errors import UsageError
from hpc_elastic.units import LONGEST_DURATION

_MOST_S = LONGEST_DURATION.total_seconds()


def check_timeout(timeout_s: object) -> None:
    """Check how long a caller wants to wait; None and infinity are no limit.

    Raises:
        UsageError: it is NaN, negative, or no number.
    """
    if not (timeout_s is None or (_is_number(timeout_s) and timeout_s >= 0)):  # type: ignore[operator]
        raise UsageError(f"timeout_s is {timeout_s!r}, expected seconds, 0 or more, or None for no limit")


def check_lead(lead_s: object) -> None:
    """Check how long workers are to have from a notice to TERM; None is what their job says.

    Raises:
        UsageError: it is NaN, infinite, negative, longer than Slurm counts, or no number.
    """
    if not (lead_s is None or (_is_number(lead_s) and 0 <= lead_s <= _MOST_S)):  # type: ignore[operator]
        raise UsageError(f"lead_s is {lead_s!r}, expected seconds, from 0 to {_MOST_S:.0f}, or None for the job's own")


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
