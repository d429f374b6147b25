"""The agent's event loop, which can handle messages in batches: it wakes up once for all that arrive together.

Theory of operation. The head of 4,096 nodes receives more than a thousand heartbeats a second, and to wake up
for one costs more than to answer it. While a head has so many members and nothing to do, its event loop
sleeps for `MOMENT_S` before it polls again, and then finds a few ready descriptors at once. If the last poll
found more than `A_HANDFUL`, the head is in the middle of a round, and the loop does not sleep.
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
    """A selector that sleeps for `moment_s` before it waits, unless there is work now or was much at the last poll."""

    def __init__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        super().__init__()
        self._sleep = sleep
        self.moment_s = 0.0
        self._found = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Implement selectors.BaseSelector: return the ready descriptors."""
        if not self.moment_s or self._found > A_HANDFUL or (timeout is not None and timeout <= 0):
            ready = super().select(timeout)
        elif not (ready := super().select(0)):
            moment_s = self.moment_s if timeout is None else min(self.moment_s, timeout)
            self._sleep(moment_s)
            ready = super().select(None if timeout is None else timeout - moment_s)
        self._found = len(ready)
        return ready


class AgentEventLoop(asyncio.SelectorEventLoop):
    """An event loop on a `RestingSelector`, which uses the same clock as the deadlines.

    Its waits do not count the time during which the machine is suspended. After a suspend a timer fires late, by what
    was left of its wait, unless something else wakes the loop before. What has to be in time is left to the guard.
    """

    def __init__(self) -> None:
        self.resting = RestingSelector()
        super().__init__(self.resting)

    def time(self) -> float:
        """Implement asyncio.AbstractEventLoop: return the deadlines' clock in seconds."""
        return now()


def rest_with(members: int) -> None:
    """Set whether the running event loop rests between polls, by the number of members that it serves now."""
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
