"""Simulated time: what is to happen, in the order of when."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count


class Clock:
    """Events at moments; those of one moment happen in the order in which they were set."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        """Something will happen."""
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), event))

    def step(self) -> bool:
        """The next event happens; whether there was one."""
        if not self._events:
            return False
        self.now, _, event = heapq.heappop(self._events)
        event()
        return True


class Timer:
    """Calls back at the moment that a machine asks for, which moves with everything that it is told."""

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._armed = 0

    def set(self, moment: float) -> None:
        """The next ring; infinity for none."""
        self._armed += 1
        if moment < float("inf"):
            armed = self._armed
            self._clock.after(max(0.0, moment - self._clock.now), lambda: self._fire(armed))

    def stop(self) -> None:
        """Never ring again, until it is set."""
        self._armed += 1

    def _fire(self, armed: int) -> None:
        if armed == self._armed:
            self._ring()
