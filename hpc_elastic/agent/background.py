"""A thread for what may block: the event loop hands work over and gets a future back.

A stall of the file system then delays the work that needs it, never a heartbeat. A worker process
is the child of the thread that started it, and its parent-death signal comes when that thread ends:
so this thread lives as long as the agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
LONGEST_QUEUE = 10_000


class BackgroundThread:
    """Runs functions one after the other, in the order they were handed over.

    Args:
        name: for debuggers.
        loop: where the futures belong.
    """

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: queue.Queue[tuple[Callable[[], Any], asyncio.Future[Any] | None] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Runs the function there; the future has its value or its exception."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.put((function, future))
        return future

    def spare(self, function: Callable[[], object]) -> None:
        """Runs the function there and forgets about it; left out when the thread is far behind."""
        if self._queue.qsize() < LONGEST_QUEUE:
            self._queue.put((function, None))

    async def close(self, timeout_s: float) -> bool:
        """Waits until all is done.

        Returns:
            Whether that was so within the time.
        """
        drained = self.call(lambda: None)
        self._queue.put(None)
        done, _ = await asyncio.wait([drained], timeout=timeout_s)
        return bool(done)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            function, future = item
            try:
                value = function()
            except BaseException as error:
                self._settle(future, None, error)
            else:
                self._settle(future, value, None)

    def _settle(self, future: asyncio.Future[Any] | None, value: Any, error: BaseException | None) -> None:
        if future is None:
            return

        def settle() -> None:
            if future.cancelled():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(value)

        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(settle)
