"""Divides the time of a run's allocations into what was useful and what was lost; pure.

Theory of operation. Each second of an allocation is in exactly one span: a cursor goes from the allocation's beginning
to its end, and whatever times the records have, it never goes back and never beyond the end. An allocation begins with
waiting for nodes; an attempt is opened, starts, trains and ends. Heartbeats say where training begins and ends: from
the first step of an attempt to the last one, and those steps that an earlier attempt has done are training again. What
comes after the last step of an attempt that failed leads to no result. Without heartbeats an attempt trains from the
moment in which every rank has its process until its end is decided, and nothing is known of repeated steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeVar

_T = TypeVar("_T")
_SAME_S = 1e-3  # times that differ by less are the same


class TimeUse(str, Enum):
    """What a second of an allocation was spent on."""

    STARTING = "starting"
    WAITING = "waiting for nodes"
    TRAINING = "training"
    AGAIN = "training again"
    RESTARTING = "stopping and restarting"
    STALLED = "stalled"
    ENDED = "ended"

    @property
    def key(self) -> str:
        """The use as one word, for the keys of records and for labels."""
        return self.value.replace(" ", "_")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptTimes:
    """An attempt; all times are in Unix seconds and None where no record has them.

    `started` is when every rank had its process; `ended` when a failure, a stop or the success was decided; `stopped`
    when the last worker was gone, and `waited` until when a node was waited for after that. `is_failed`: what came
    after its last step is lost. `is_stalled`: it failed because no rank went on. `steps` are the furthest steps that
    ranks had done at moments, in the order of the moments.
    """

    number: int
    opened: float
    started: float | None = None
    ended: float | None = None
    stopped: float | None = None
    waited: float | None = None
    is_failed: bool = False
    is_stalled: bool = False
    steps: tuple[tuple[float, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationTimes:
    """A start of the job by the scheduler, from its first to its last sign of life, and its attempts, in order.

    `number` is that of its first allocation claim. `claimed`: until then the agents started. `ending` is when it was
    decided that no attempt follows in it, None if that was never decided.
    """

    number: int = 1
    begin: float
    end: float
    claimed: float | None = None
    ending: float | None = None
    attempts: tuple[AttemptTimes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpan:
    """A part of an allocation; `attempt` is 0 before the first one, `allocation` the allocation's number."""

    begin: float
    end: float
    use: TimeUse
    attempt: int
    allocation: int = 1


def divide(allocations: Sequence[AllocationTimes], *, are_steps_comparable: bool = True) -> list[TimeSpan]:
    """Return the spans of all allocations, each allocation without a gap from its beginning to its end.

    Clocks of several machines may disagree: a time outside of what came before it counts as the nearest one inside.

    Args:
        allocations: the allocations, in order.
        are_steps_comparable: whether a step with the same number is the same step in each attempt.
    """
    spans: list[TimeSpan] = []
    best: int | None = None
    for allocation in allocations:
        cursor = _Cursor(allocation, spans)
        cursor.advance(allocation.claimed, TimeUse.STARTING, 0)
        before: AttemptTimes | None = None
        over = allocation.end if allocation.ending is None else min(allocation.ending, allocation.end)
        for index, attempt in enumerate(allocation.attempts):
            _divide_pause(cursor, before, attempt.opened)
            following = allocation.attempts[index + 1 : index + 2]
            until = min([over, *(each.opened for each in following), *_known(attempt.ended)])
            cut = replace(attempt, ended=until, is_failed=attempt.is_failed or bool(following))
            _divide_attempt(cursor, cut, until, is_first=before is None, best=best)
            if are_steps_comparable:
                best = max([step for _, step in attempt.steps] + _known(best), default=None)
            before = attempt
        number = before.number if before is not None else 0
        cursor.advance(over, TimeUse.WAITING if before is None else TimeUse.RESTARTING, number)
        cursor.advance(allocation.end, TimeUse.ENDED, number)
    return spans


def totals(spans: Sequence[TimeSpan]) -> dict[TimeUse, float]:
    """Return the seconds of each use, also of those that took none."""
    sums = dict.fromkeys(TimeUse, 0.0)
    for span in spans:
        sums[span.use] += span.end - span.begin
    return sums


def share_of(sums: Mapping[TimeUse, float]) -> float | None:
    """Return training / all; None if there is no time at all."""
    whole = sum(sums.values())
    return sums[TimeUse.TRAINING] / whole if whole > 0 else None


def useful_share(spans: Sequence[TimeSpan]) -> float | None:
    """Return training / all; None if there is no time at all."""
    return share_of(totals(spans))


def _known(value: _T | None) -> list[_T]:
    return [] if value is None else [value]


def _divide_pause(cursor: _Cursor, before: AttemptTimes | None, opened: float) -> None:
    """Divide what comes before an attempt in its allocation, after the end of the one before."""
    if before is None:
        cursor.advance(opened, TimeUse.WAITING, 0)
        return
    if before.waited is not None and before.stopped is not None:
        cursor.advance(min(before.stopped, opened), TimeUse.RESTARTING, before.number)
        cursor.advance(min(before.waited, opened), TimeUse.WAITING, before.number)
    cursor.advance(opened, TimeUse.RESTARTING, before.number)


def _divide_attempt(cursor: _Cursor, attempt: AttemptTimes, until: float, *, is_first: bool, best: int | None) -> None:
    """Divide an attempt until its end.

    Args:
        cursor: stands where the attempt was opened.
        attempt: the attempt.
        until: its end, or that of what is known.
        is_first: it is the first of its allocation.
        best: the furthest step of the attempts before, None if none named one.
    """
    number, start = attempt.number, TimeUse.STARTING if is_first else TimeUse.RESTARTING
    steps = [(at, step) for at, step in attempt.steps if cursor.at <= at <= until + _SAME_S]
    if not steps:
        cursor.advance(until if attempt.started is None else min(attempt.started, until), start, number)
        cursor.advance(until, TimeUse.STALLED if attempt.is_stalled else TimeUse.TRAINING, number)
        return
    begin = steps[0][0] - _first_step_s(steps)
    cursor.advance(begin if attempt.started is None else max(begin, min(attempt.started, steps[0][0])), start, number)
    highest = max(step for _, step in steps)
    last = next(at for at, step in steps if step == highest)
    is_again = best is not None and steps[0][1] <= best
    if best is not None and is_again:
        cursor.advance(_reached(steps, best), TimeUse.AGAIN, number)
    if attempt.is_failed:
        cursor.advance(last, TimeUse.TRAINING, number)
        cursor.advance(until, TimeUse.STALLED if attempt.is_stalled else TimeUse.RESTARTING, number)
    else:
        is_behind = is_again and best is not None and highest < best
        cursor.advance(until, TimeUse.AGAIN if is_behind else TimeUse.TRAINING, number)


def _first_step_s(steps: Sequence[tuple[float, int]]) -> float:
    """Return how long the first step took, which nobody said: as long as the next ones; 0 if there are none."""
    (begin, first), *more = steps
    return next(((at - begin) / (step - first) for at, step in more if step > first), 0.0)


def _reached(steps: Sequence[tuple[float, int]], goal: int) -> float:
    """Return when a step was done, between two moments as if each step took the same time; the last moment if never."""
    before_at, before = steps[0]
    for at, step in steps:
        if step >= goal:
            return at if step <= before else before_at + (at - before_at) * (goal - before) / (step - before)
        before_at, before = at, step
    return steps[-1][0]


class _Cursor:
    """The place up to which an allocation is divided."""

    def __init__(self, allocation: AllocationTimes, spans: list[TimeSpan]) -> None:
        self.at = allocation.begin
        self.end = max(allocation.begin, allocation.end)
        self._number = allocation.number
        self._spans = spans

    def advance(self, until: float | None, use: TimeUse, attempt: int) -> None:
        if until is None:
            return
        until = min(until, self.end)
        if until > self.at:
            span = TimeSpan(begin=self.at, end=until, use=use, attempt=attempt, allocation=self._number)
            self._spans.append(span)
            self.at = until
