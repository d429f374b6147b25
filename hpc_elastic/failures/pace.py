"""Says how fast the ranks go and which of them are behind the others, from the steps in samples; pure.

The samples of two nodes are of two moments, up to ten seconds apart: in that time a run may do hundreds of steps. So
a rank's step is first moved to the moment of the latest sample, as if the rank had gone on as fast as the median.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hpc_elastic.rundir.sample_tail import RankSeen

LEAST_BEHIND = 2.0  # steps: ranks that wait for each other differ by one
TOLERANCE_S = 1.0  # how far samples and heartbeats are apart without any rank being slow
SLOW_BELOW = 0.9  # of the median rate: a rank that falls further behind, and does not only catch up
FEWEST_STEPS = 5  # that the median rank must have made: below, one step more or less says nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRank:
    """A rank that is behind the median of all ranks by so many steps; `rate` in steps a second, None if unknown."""

    rank: int
    node: str
    step: int
    behind: float
    age_s: float
    rate: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Where a run is: the median step, the steps a second (None if unknown) and the slow ranks, the slowest first.

    `steps` is how many the median rank made between its two sightings.
    """

    step: int | None = None
    rate: float | None = None
    slow: tuple[SlowRank, ...] = ()
    steps: float = 0.0


NO_PACE = Pace()


def find_pace(seen: Sequence[RankSeen]) -> Pace:
    """Return the pace of the ranks, from one or more sightings of each.

    Ranks that wait for each other in every step are never apart by more than a step, and none of them is slow: then
    what is slow shows in the time that each of them waits, which heartbeats do not tell. Where a rank's steps have
    begun anew, as with each epoch of some scripts, the ranks cannot be compared for a moment.

    Args:
        seen: the sightings, in any order; of several of a rank the first and the last count.
    """
    by_rank: dict[int, list[RankSeen]] = {}
    for each in sorted(seen, key=lambda each: each.at):
        by_rank.setdefault(each.rank, []).append(each)
    if not by_rank:
        return NO_PACE
    anew = {rank for rank, of in by_rank.items() if of[-1].step < of[0].step}
    ends = {rank: (of[0], of[-1]) for rank, of in by_rank.items() if of[-1].at > of[0].at and rank not in anew}
    rates = {rank: (last.step - first.step) / (last.at - first.at) for rank, (first, last) in ends.items()}
    rate = median(rates.values()) if rates else None
    latest = [sightings[-1] for sightings in by_rank.values()]
    now = max(each.at for each in latest)
    moved = {each.rank: each.step + (rate or 0.0) * (now - each.at) for each in latest}
    middle = median([*moved.values()])
    # Without a rate nothing is known of samples of different moments.
    least = max(LEAST_BEHIND, (rate or 0.0) * TOLERANCE_S)
    is_comparable = not anew and (
        rate is not None or max(each.at for each in latest) == min(each.at for each in latest)
    )
    slow = [
        SlowRank(
            rank=each.rank,
            node=each.node,
            step=each.step,
            behind=round(middle - moved[each.rank], 1),
            age_s=each.age_s,
            rate=None if each.rank not in rates else round(rates[each.rank], 3),
        )
        for each in latest
        if is_comparable and middle - moved[each.rank] >= least
    ]
    return Pace(
        step=int(median(each.step for each in latest)),
        rate=None if rate is None else round(rate, 3),
        slow=tuple(sorted(slow, key=lambda each: (-each.behind, each.rank))),
        steps=median(last.step - first.step for first, last in ends.values()) if ends else 0.0,
    )


def median(values: Iterable[float]) -> float:
    """Return the median; the module `statistics` takes longer to import than `status` may take in all."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def falls_behind(pace: Pace) -> tuple[SlowRank, ...]:
    """Return the slow ranks that fall further behind, the slowest first.

    A rank that is behind, and goes as fast as the others, has begun later or went back to an older step.
    """
    if pace.rate is None or pace.steps < FEWEST_STEPS:
        return ()
    return tuple(each for each in pace.slow if each.rate is not None and each.rate < SLOW_BELOW * pace.rate)
