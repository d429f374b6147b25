"""Limits log lines about events that any program on the network can cause, to a few lines a minute."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LINES = 5
PERIOD_S = 60.0


class RateLimitedSay:
    """A log function that passes on the first lines of a period, and at its end the number of the others.

    Args:
        say: takes the lines that are passed on.
        what: names the events in the line about the others: `{number} more {what} within 60 s`.
        period_s: the length of a period, in seconds.
    """

    def __init__(self, say: Callable[[str], None], what: str, *, period_s: float = PERIOD_S) -> None:
        self._say = say
        self._what = what
        self._period_s = period_s
        self._loop = asyncio.get_running_loop()
        self._said = 0
        self._untold = 0
        self._last = ""
        self._end_of_period: asyncio.TimerHandle | None = None

    def __call__(self, text: str) -> None:
        """Pass the line on, or only counts it if the period has had its lines."""
        if self._end_of_period is None:
            self._end_of_period = self._loop.call_later(self._period_s, self.begin_anew)
        if self._said < LINES:
            self._said += 1
            self._say(text)
        else:
            self._untold += 1
            self._last = text

    def begin_anew(self) -> None:
        """End the period: reports how many lines were only counted, and the last of them."""
        if self._end_of_period is not None:
            self._end_of_period.cancel()
        self._end_of_period, self._said = None, 0
        if self._untold:
            self._say(f"{self._untold} more {self._what} within {self._period_s:.0f} s, the last one: {self._last}")
            self._untold = 0
