"""Simulated time: what is to happen, in the order of when."""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import TypeVar

Event = Callable[[], object]
T = TypeVar("T")
NEVER = float("inf")
LATE_S = 1e-6  # a timer never rings early, whatever the sum of two numbers is rounded to


class Clock:
    """Events at moments; those of one moment happen in the order in which they were set."""

    def __init__(self) -> None:
        self.now = 0.0
        self._later: list[tuple[float, int, Event]] = []  # a heap
        self._at_once: deque[Event] = deque()  # of this moment, after those that were set for it before it came
        self._numbers = count()
        self.has_news = False  # what happens has changed something that whoever plays looks at
        self.at_once = (
            self._at_once.append
        )  # something will happen in this moment: most events, which this is quick for

    def after(self, seconds: float, event: Event) -> None:
        """Something will happen."""
        moment = self.now + seconds
        if moment > self.now:
            heappush(self._later, (moment, next(self._numbers), event))
        else:
            self._at_once.append(event)

    def at(self, moment: float, event: Event) -> None:
        """Something will happen, at once if the moment is over."""
        if moment > self.now:
            heappush(self._later, (moment, next(self._numbers), event))
        else:
            self._at_once.append(event)

    @property
    def next_event(self) -> Event | None:
        """What happens next, if anything does."""
        if self._is_next_at_once:
            return self._at_once[0]
        return self._later[0][2] if self._later else None

    @property
    def _is_next_at_once(self) -> bool:
        return bool(self._at_once) and not (self._later and self._later[0][0] <= self.now)

    def go_to_next(self) -> None:
        """It is the moment of the next event, which has not happened yet."""
        if not self._is_next_at_once:
            self.now = self._later[0][0]

    def postpone(self, seconds: float) -> None:
        """The next event comes later, and others before it."""
        if self._is_next_at_once:
            self.after(seconds, self._at_once.popleft())
        else:
            moment, _, event = heappop(self._later)
            self.at(moment + seconds, event)

    def step(self) -> bool:
        """The next event happens; whether there was one."""
        return next(self.happens(each=True), None) is not None

    def happens(self, until: float = NEVER, most: int = sys.maxsize, *, each: bool = False) -> Iterator[float]:
        """One event after the other happens; yields the moment after an event with news, or after each.

        It ends after so many events, after the first one that is later than `until`, or when there are no more.
        """
        later, at_once = self._later, self._at_once
        for _ in range(most):
            if at_once and not (later and later[0][0] <= self.now):
                event = at_once.popleft()
            elif later:
                self.now, _, event = heappop(later)
            else:
                return
            event()
            if self.now > until:
                return
            if self.has_news or each:
                self.has_news = False
                yield self.now


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


def chooser(dice: random.Random, choices: Sequence[T]) -> Callable[[], T]:
    """`dice.choice(choices)`, for who asks again and again: the same draws, in half of the time."""
    size = len(choices)
    draw, bits = dice.getrandbits, size.bit_length()

    def choose() -> T:
        number = draw(bits)
        while number >= size:
            number = draw(bits)
        return choices[number]

    return choose
