"""Divides the time of a run's allocations into what was useful and what was lost; pure.

Each second of an allocation is in exactly one span. An allocation begins with waiting for nodes; an attempt is opened,
starts, trains and fails; what comes between the end of one attempt and the moment in which every rank of the next one
has its process is stopping and restarting. Training is training again until a step is reached that no attempt before
had reached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum


class TimeUse(str, Enum):
    """What a second of an allocation was spent on."""

    STARTING = "starting"
    WAITING = "waiting for nodes"
    TRAINING = "training"
    AGAIN = "training again"
    RESTARTING = "stopping and restarting"
    STALLED = "stalled"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptTimes:
    """An attempt; all times are in Unix seconds and None where no record has them.

    `started` is when every rank had its process; `failed` when a failure, a stop or the success was decided;
    `stalled` the last sign of progress, if it failed because there was no more.
    """

    number: int
    opened: float
    started: float | None = None
    failed: float | None = None
    stalled: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationTimes:
    """An allocation from its claim to its last sign of life, and the attempts that were opened in it, in order."""

    begin: float
    end: float
    attempts: tuple[AttemptTimes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpan:
    """A part of an allocation; `attempt` is 0 before the first one."""

    begin: float
    end: float
    use: TimeUse
    attempt: int


def divide(allocations: Sequence[AllocationTimes], steps: Sequence[tuple[float, int]] = ()) -> list[TimeSpan]:
    """Return the spans of all allocations, each allocation without a gap from its beginning to its end.

    Clocks of several machines may disagree: a time outside of what came before it counts as the nearest one inside.

    Args:
        allocations: the allocations, in order.
        steps: the highest step of any rank at moments in Unix seconds, in order; empty if no rank said its step.
    """
    spans: list[TimeSpan] = []
    best = -1
    for allocation in allocations:
        cursor = _Cursor(allocation.begin, max(allocation.begin, allocation.end), spans)
        before = 0
        for attempt in _closed(allocation.attempts):
            is_first = before == 0
            cursor.advance(attempt.opened, TimeUse.WAITING if is_first else TimeUse.RESTARTING, before)
            is_started = attempt.started is not None
            until = attempt.started if attempt.started is not None else attempt.failed
            cursor.advance(until, TimeUse.STARTING if is_first else TimeUse.RESTARTING, attempt.number)
            if is_started:
                best = _train(cursor, attempt, steps, best, allocation.end)
            before = attempt.number
        last = allocation.attempts[-1] if allocation.attempts else None
        if last is None:
            cursor.advance(allocation.end, TimeUse.WAITING, 0)
        elif last.failed is None and last.started is None:
            cursor.advance(allocation.end, TimeUse.STARTING, before)
        cursor.advance(allocation.end, TimeUse.ENDED, before)
    return spans


def totals(spans: Sequence[TimeSpan]) -> dict[TimeUse, float]:
    """Return the seconds of each use, also of those that took none."""
    sums = dict.fromkeys(TimeUse, 0.0)
    for span in spans:
        sums[span.use] += span.end - span.begin
    return sums


def useful_share(spans: Sequence[TimeSpan]) -> float | None:
    """Return training / all; None if there is no time at all."""
    sums = totals(spans)
    whole = sum(sums.values())
    return sums[TimeUse.TRAINING] / whole if whole > 0 else None


def _closed(attempts: Sequence[AttemptTimes]) -> list[AttemptTimes]:
    """Return the attempts, each of which ends when the next one is opened: a lost head recorded no failure."""
    following: list[float | None] = [*(attempt.opened for attempt in attempts[1:]), None]
    return [
        attempt
        if after is None or (attempt.failed is not None and attempt.failed <= after)
        else replace(attempt, failed=after)
        for attempt, after in zip(attempts, following, strict=False)
    ]


class _Cursor:
    """The place up to which an allocation is divided."""

    def __init__(self, begin: float, end: float, spans: list[TimeSpan]) -> None:
        self.at = begin
        self._end = end
        self._spans = spans

    def advance(self, until: float | None, use: TimeUse, attempt: int) -> None:
        if until is None:
            return
        until = min(max(until, self.at), self._end)
        if until > self.at:
            self._spans.append(TimeSpan(begin=self.at, end=until, use=use, attempt=attempt))
            self.at = until


def _train(cursor: _Cursor, attempt: AttemptTimes, steps: Sequence[tuple[float, int]], best: int, end: float) -> int:
    """Divide the time in which an attempt's ranks ran, and return the highest step so far."""
    begin, until = cursor.at, attempt.failed if attempt.failed is not None else end
    own = [(at, step) for at, step in steps if begin <= at <= until]
    if best >= 0 and own:
        new = next((at for at, step in own if step > best), until)
        cursor.advance(min(new, attempt.stalled or until), TimeUse.AGAIN, attempt.number)
    cursor.advance(attempt.stalled, TimeUse.TRAINING, attempt.number)
    cursor.advance(until, TimeUse.STALLED if attempt.stalled is not None else TimeUse.TRAINING, attempt.number)
    return max([best, *(step for _, step in own)])
