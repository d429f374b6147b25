"""Which ranks have stalled, and which ones of a node fall behind the others, by their heartbeats; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatState:
    """A rank's heartbeats: its latest step (None: it named none), the seconds since the latest, and how many so far.

    `age_s` is None before the first one.
    """

    step: int | None
    age_s: float | None
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StallLimits:
    """The bounds of the job file in seconds, None: no bound. `first_s` counts from the start to the first heartbeat."""

    stall_s: float | None
    first_s: float | None

    @property
    def smallest_s(self) -> float | None:
        """The smaller of the bounds, None if there is none."""
        return min((bound for bound in (self.stall_s, self.first_s) if bound is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class StalledRank:
    """A rank that has made no progress for `silent_s`; `step` is None where it named none, or never began."""

    rank: int
    silent_s: float
    step: int | None
    has_begun: bool

    def describe(self) -> str:
        """Return what is wrong with it, as the end of a sentence that begins with the rank."""
        if not self.has_begun:
            return f"no first heartbeat for {self.silent_s:.0f} s"
        after = "" if self.step is None else f" after step {self.step}"
        return f"no heartbeat for {self.silent_s:.0f} s{after}"


def find_stalled(
    states: Mapping[int, HeartbeatState], limits: StallLimits, *, watched_s: float
) -> tuple[StalledRank, ...]:
    """Return the ranks that have stalled, those that stopped first at the beginning.

    A rank that has never called `heartbeat` is compared with `first_s` only: without that bound it may be a
    rank, or a script, that does not call it at all.

    Args:
        states: the ranks that run, by their numbers.
        limits: the bounds.
        watched_s: for how long these ranks have been watched without a break: since their start, or since this
            agent was last found to have been paused. No rank is silent for longer, as far as anybody knows.
    """
    found = []
    for rank, state in states.items():
        limit = limits.first_s if state.age_s is None else limits.stall_s
        silent_s = watched_s if state.age_s is None else min(state.age_s, watched_s)
        if limit is not None and silent_s > limit:
            has_begun = state.age_s is not None
            found.append(StalledRank(rank=rank, silent_s=silent_s, step=state.step, has_begun=has_begun))
    return tuple(sorted(found, key=_order_of_stops))


def _order_of_stops(stalled: StalledRank) -> tuple[bool, float, float]:
    """Order ranks by when they stopped: those that never began, then those of the lowest step, then by time."""
    return stalled.has_begun, float("-inf") if stalled.step is None else stalled.step, -stalled.silent_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSample:
    """The step of a rank at a time, in seconds of any clock that all samples share."""

    rank: int
    node: str
    time_s: float
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBehind:
    """A rank that is behind the others: by `behind` steps, with its rate and the median rate, in steps a second."""

    rank: int
    node: str
    behind: int
    rate: float
    usual_rate: float


SLOW_BELOW = 0.9  # of the median rate
FEWEST_STEPS = 5  # that the median rank must have made: below, one step more or less says nothing


def find_behind(samples: Sequence[StepSample]) -> tuple[RankBehind, ...]:
    """Return the ranks that are behind the median rank and are slower than it, the farthest behind first.

    Ranks that wait for each other in every step are never apart by more than a step, and none of them is found: then
    what is slow shows in the time that each of them waits, which heartbeats do not tell.

    Args:
        samples: the steps of ranks over a time, in any order; a rank with fewer than two samples is passed over.
    """
    by_rank: dict[int, list[StepSample]] = {}
    for sample in sorted(samples, key=lambda sample: sample.time_s):
        by_rank.setdefault(sample.rank, []).append(sample)
    ends = {rank: (of[0], of[-1]) for rank, of in by_rank.items() if of[-1].time_s > of[0].time_s}
    if len(ends) < 2:
        return ()
    rates = {rank: (last.step - first.step) / (last.time_s - first.time_s) for rank, (first, last) in ends.items()}
    usual_rate, newest = median(rates.values()), max(last.time_s for _, last in ends.values())
    # Ranks are sampled at different moments: what each would have reached at the newest of them is compared.
    reached = {rank: last.step + rates[rank] * (newest - last.time_s) for rank, (_, last) in ends.items()}
    usual = median(reached.values())
    if median(last.step - first.step for first, last in ends.values()) < FEWEST_STEPS:
        return ()
    slow = [
        RankBehind(
            rank=rank, node=last.node, behind=round(usual - reached[rank]), rate=rates[rank], usual_rate=usual_rate
        )
        for rank, (_, last) in ends.items()
        if rates[rank] < SLOW_BELOW * usual_rate and usual - reached[rank] >= 2
    ]
    return tuple(sorted(slow, key=lambda found: (-found.behind, found.rank)))
