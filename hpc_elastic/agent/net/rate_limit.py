"""Says a few lines a minute of what anybody on the network can cause as often as they like."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LINES = 5
PERIOD_S = 60.0


class RateLimitedSay:
    """Passes the first lines of a period on, then counts, and says the number at the period's end.

    Args:
        say: where the lines go.
        what: what the rest is called: `{number} more {what} within 60 s`.
    """

    def __init__(self, say: Callable[[str], None], what: str) -> None:
        self._say = say
        self._what = what
        self._loop = asyncio.get_running_loop()
        self._said = 0
        self._untold = 0
        self._last = ""
        self._end_of_period: asyncio.TimerHandle | None = None

    def __call__(self, text: str) -> None:
        """Says it, or counts it."""
        if self._end_of_period is None:
            self._end_of_period = self._loop.call_later(PERIOD_S, self.begin_anew)
        if self._said < LINES:
            self._said += 1
            self._say(text)
        else:
            self._untold += 1
            self._last = text

    def begin_anew(self) -> None:
        """Ends the period: tells what it kept to itself."""
        if self._end_of_period is not None:
            self._end_of_period.cancel()
        self._end_of_period, self._said = None, 0
        if self._untold:
            self._say(f"{self._untold} more {self._what} within {PERIOD_S:.0f} s, the last one: {self._last}")
            self._untold = 0
