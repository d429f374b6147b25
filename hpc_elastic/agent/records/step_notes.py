"""Records the steps that this node's ranks have done, at moments that become rarer as an attempt goes on.

Theory of operation. What an attempt's time was worth is found from its events alone (`hpc_elastic.useful_time`): which
step was the first and when, which the last, and some between. One node of each role looks, and waits each time for
a tenth of the time that the attempt has run: a day has about a hundred lines, and a step between two of them is known
as exactly as any other part of the attempt. Every node with heartbeats records its last step when its workers are gone,
so that one survives whichever node is lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from hpc_elastic.membership.actions import Note

FIRST_LOOKS_S = 1.0  # apart
PAUSE_SHARE = 0.1  # of the time since the attempt's workers were started


class StepState(Protocol):
    """What a rank's heartbeats say: the last and the first step that it named, and how many seconds ago."""

    @property
    def step(self) -> int | None:
        """The latest step; None if it named none."""

    @property
    def age_s(self) -> float | None:
        """The seconds since the latest heartbeat."""

    @property
    def first_step(self) -> int | None:
        """The first step that it named."""

    @property
    def first_age_s(self) -> float | None:
        """The seconds since then."""


class Timer(Protocol):
    """A call that will come."""

    def cancel(self) -> None:
        """Have it not come."""


class StepNotes:
    """The notes of the steps of this node's ranks.

    Args:
        progress: returns what each global rank's heartbeats say.
        note: takes an event for the run's records.
        later: calls a function after so many seconds, as an event loop's `call_later`.
        now: monotonic seconds.
        now_ns: nanoseconds since 1970.
    """

    def __init__(
        self,
        progress: Callable[[], Mapping[int, StepState]],
        note: Callable[[Note], None],
        *,
        later: Callable[[float, Callable[[], None]], Timer],
        now: Callable[[], float] = time.monotonic,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._progress = progress
        self._note = note
        self._later = later
        self._now = now
        self._now_ns = now_ns
        self._attempt: int | None = None
        self._began = 0.0
        self._told: int | None = None  # the latest step that is recorded
        self._timer: Timer | None = None

    def begin(self, attempt: int, *, is_traced: bool) -> None:
        """Begin with an attempt, whose workers have just been started; `is_traced`: record steps before its end too."""
        self._cancel()
        self._attempt, self._began, self._told = attempt, self._now(), None
        if is_traced:
            self._timer = self._later(FIRST_LOOKS_S, self._look)

    def end(self) -> None:
        """Record the last step of the attempt, whose workers are gone."""
        self._cancel()
        self._tell()
        self._attempt = None

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._tell()
        pause_s = max(FIRST_LOOKS_S, PAUSE_SHARE * (self._now() - self._began))
        self._timer = self._later(pause_s, self._look)

    def _tell(self) -> None:
        """Record the furthest step, and at the first time the first one, if there are new ones."""
        if self._attempt is None:
            return
        states, now_ns = self._progress().values(), self._now_ns()
        latest = [(state.step, state.age_s) for state in states if state.step is not None and state.age_s is not None]
        if not latest or max(latest)[0] == self._told:
            return
        step, age_s = max(latest)
        metadata = {"step": step, "step_time_ns": now_ns - int(age_s * 1e9)}
        firsts = [
            (state.first_age_s, state.first_step)
            for state in states
            if state.first_step is not None and state.first_age_s is not None
        ]
        if self._told is None and firsts:
            first_age_s, first_step = max(firsts)
            metadata |= {"first_step": first_step, "first_time_ns": now_ns - int(first_age_s * 1e9)}
        self._told = step
        self._note(Note(name="steps.done", message=f"step {step}", attempt=self._attempt, metadata=metadata))
