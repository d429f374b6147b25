"""Which ranks have stalled, by their heartbeats; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SAVING_TIMES = 10  # so many times its bound a rank that saves may be silent


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatState:
    """A rank's heartbeats: its latest step (None: it named none), the seconds since the latest, and how many so far.

    `age_s` is None before the first one. `is_saving`: the rank is in a block of `saving`, in which it makes none.
    `first_step` is that of the first heartbeat that named one, and `first_age_s` the seconds since then.
    """

    step: int | None
    age_s: float | None
    count: int
    is_saving: bool = False
    first_step: int | None = None
    first_age_s: float | None = None


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

    A rank that saves may take `SAVING_TIMES` as long: a checkpoint takes many steps' time.

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
        if limit is not None and silent_s > limit * (SAVING_TIMES if state.is_saving else 1):
            has_begun = state.age_s is not None
            found.append(StalledRank(rank=rank, silent_s=silent_s, step=state.step, has_begun=has_begun))
    return tuple(sorted(found, key=_order_of_stops))


def _order_of_stops(stalled: StalledRank) -> tuple[bool, float, float]:
    """Order ranks by when they stopped: those that never began, then those of the lowest step, then by time."""
    return stalled.has_begun, float("-inf") if stalled.step is None else stalled.step, -stalled.silent_s
