"""Simulated time: what is to happen, in the order of when."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

Event = Callable[[], object]
NEVER = float("inf")
LATE_S = 1e-6  # a timer never rings early, whatever the sum of two numbers is rounded to


class Clock:
    """Events at moments; those of one moment happen in the order in which they were set."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Event]] = []
        self._numbers = count()

    def after(self, seconds: float, event: Event) -> None:
        """Something will happen."""
        self.at(self.now + seconds, event)

    def at(self, moment: float, event: Event) -> None:
        """Something will happen, at once if the moment is over."""
        heapq.heappush(self._events, (max(self.now, moment), next(self._numbers), event))

    @property
    def next_event(self) -> Event | None:
        """What happens next, if anything does."""
        return self._events[0][2] if self._events else None

    def go_to_next(self) -> None:
        """It is the moment of the next event, which has not happened yet."""
        self.now = self._events[0][0]

    def postpone(self, seconds: float) -> None:
        """The next event comes later, and others before it."""
        moment, _, event = heapq.heappop(self._events)
        self.at(moment + seconds, event)

    def step(self) -> bool:
        """The next event happens; whether there was one."""
        if not self._events:
            return False
        self.now, _, event = heapq.heappop(self._events)
        event()
        return True


@dataclass(frozen=True)
class MachineClock:
    """What a machine's clock shows: so many seconds in one of this clock, and it was `ahead_s` ahead at first."""

    ahead_s: float = 0.0
    rate: float = 1.0

    def shows(self, moment: float) -> float:
        """What it shows at a moment of this clock."""
        return moment * self.rate + self.ahead_s

    def moment_of(self, shown: float) -> float:
        """When it shows that, by this clock."""
        return (shown - self.ahead_s) / self.rate
