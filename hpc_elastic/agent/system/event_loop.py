"""The agent's event loop, which can take together what comes within a moment.

Theory of operation. The head of 4,096 nodes hears more than a thousand beats a second, and to wake up for
one costs more than to answer it. While it has so many members and nothing to do, its event loop
sleeps for a moment before it looks for work again, and then finds a handful. Whoever found more than
that is in the middle of a round, and does not sleep.
"""

from __future__ import annotations

import asyncio
import selectors
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from hpc_elastic.clock import now

MANY_MEMBERS = 1024
MOMENT_S = 0.01
A_HANDFUL = 64

T = TypeVar("T")


class RestingSelector(selectors.EpollSelector):
    """Sleeps for `moment_s` before it waits; not if there is work already, or was plenty at the last look."""

    def __init__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        super().__init__()
        self._sleep = sleep
        self.moment_s = 0.0
        self._found = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Of selectors.BaseSelector."""
        if not self.moment_s or self._found > A_HANDFUL or (timeout is not None and timeout <= 0):
            ready = super().select(timeout)
        elif not (ready := super().select(0)):
            moment_s = self.moment_s if timeout is None else min(self.moment_s, timeout)
            self._sleep(moment_s)
            ready = super().select(None if timeout is None else timeout - moment_s)
        self._found = len(ready)
        return ready


class AgentEventLoop(asyncio.SelectorEventLoop):
    """An event loop on a selector that can rest, whose time is the one of the deadlines.

    Its waits do not count what the machine sleeps, so after that a timer comes late by what was left of its wait,
    unless something else wakes the loop before. What has to be in time is the guard's.
    """

    def __init__(self) -> None:
        self.resting = RestingSelector()
        super().__init__(self.resting)

    def time(self) -> float:
        """Of asyncio.AbstractEventLoop."""
        return now()


def rest_with(members: int) -> None:
    """The running event loop serves so many members now."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, AgentEventLoop):
        loop.resting.moment_s = MOMENT_S if members > MANY_MEMBERS else 0.0


if sys.version_info >= (3, 11):

    def run(main: Coroutine[Any, Any, T]) -> T:
        """As asyncio.run, on an AgentEventLoop."""
        with asyncio.Runner(loop_factory=AgentEventLoop) as runner:
            return runner.run(main)

else:

    class _Policy(asyncio.DefaultEventLoopPolicy):
        _loop_factory = AgentEventLoop

    def run(main: Coroutine[Any, Any, T]) -> T:
        """As asyncio.run, on an AgentEventLoop."""
        asyncio.set_event_loop_policy(_Policy())
        return asyncio.run(main)
