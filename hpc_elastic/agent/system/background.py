"""A thread for what may block: the event loop hands work over and gets a future back.

A stall of the file system then delays the work that needs it, never a heartbeat. A worker process
is the child of the thread that started it, and its parent-death signal comes when that thread ends:
so this thread lives as long as the agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
LONGEST_QUEUE = 10_000
URGENT, USUAL, LAST = range(3)


class BackgroundThread:
    """Runs functions one after the other, in the order they were handed over, the urgent ones first.

    Args:
        name: for debuggers.
        loop: where the futures belong.
    """

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # How urgent, its place in the order, the function, and who waits for it.
        self._queue: queue.PriorityQueue[tuple[int, int, Callable[[], Any] | None, asyncio.Future[Any] | None]]
        self._queue = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], T], *, is_urgent: bool = False) -> asyncio.Future[T]:
        """Runs the function there; the future has its value or its exception.

        Args:
            function: what to run.
            is_urgent: before all that is not, and was handed over already.
        """
        return self._put(URGENT if is_urgent else USUAL, function)

    def _put(self, urgency: int, function: Callable[[], T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.put((urgency, next(self._numbers), function, future))
        return future

    def best_effort(self, function: Callable[[], object]) -> None:
        """Runs the function there and forgets about it; left out when the thread is far behind."""
        if self._queue.qsize() < LONGEST_QUEUE:
            self._queue.put((USUAL, next(self._numbers), function, None))

    def watch(self, look: Callable[[], bool], found: Callable[[], None], *, every_s: float) -> Callable[[], None]:
        """Looks again and again, in a thread beside this one, which does not wait for what is queued here.

        Args:
            look: whether there is something; blocks.
            found: called in the event loop each time that there is.
            every_s: the pause between two looks.

        Returns:
            What ends it.
        """
        is_over = threading.Event()

        def watch() -> None:
            while not is_over.wait(every_s):
                if look():
                    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody wants to know any more
                        self._loop.call_soon_threadsafe(found)

        threading.Thread(target=watch, name="watch", daemon=True).start()
        return is_over.set

    async def close(self, timeout_s: float) -> bool:
        """Waits until all is done.

        Returns:
            Whether that was so within the time.
        """
        drained = self._put(LAST, lambda: None)
        self._queue.put((LAST, next(self._numbers), None, None))
        done, _ = await asyncio.wait([drained], timeout=timeout_s)
        return bool(done)

    def _run(self) -> None:
        while True:
            _, _, function, future = self._queue.get()
            if function is None:
                return
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
