"""Runs blocking work in a thread: the event loop hands over a function and gets a future back.

A stall of the file system then delays only the work that needs it, never a heartbeat. A worker process
is the child of the thread that started it, and its parent-death signal is sent when that thread ends:
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
    """A thread that runs functions one after the other, in the order they were handed over, the urgent ones first.

    Args:
        name: the thread's name, for debuggers.
        loop: the event loop that the futures belong to.
    """

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # Each entry: the urgency, the place in the order, the function, and the future that gets its result.
        self._queue: queue.PriorityQueue[tuple[int, int, Callable[[], Any] | None, asyncio.Future[Any] | None]]
        self._queue = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], T], *, is_urgent: bool = False) -> asyncio.Future[T]:
        """Run a function in the thread; the future gets its value or its exception.

        Args:
            function: what to run.
            is_urgent: run it before the queued functions that are not urgent.
        """
        return self._put(URGENT if is_urgent else USUAL, function)

    def _put(self, urgency: int, function: Callable[[], T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.put((urgency, next(self._numbers), function, future))
        return future

    def best_effort(self, function: Callable[[], object], *, most_queued: int = LONGEST_QUEUE) -> None:
        """Run a function in the thread and ignore its outcome; drop it if `most_queued` functions wait already."""
        if self._queue.qsize() < most_queued:
            self._queue.put((USUAL, next(self._numbers), function, None))

    def watch(self, look: Callable[[], bool], found: Callable[[], None], *, every_s: float) -> Callable[[], None]:
        """Poll a condition in a thread of its own, which does not wait for the functions queued here.

        Args:
            look: returns whether the condition holds; may block.
            found: called in the event loop each time that it holds.
            every_s: seconds between two polls.

        Returns:
            A function that ends the polling.
        """
        is_over = threading.Event()

        def watch() -> None:
            while not is_over.wait(every_s):
                if look():
                    with contextlib.suppress(RuntimeError):  # the loop is closed: nothing uses the answer
                        self._loop.call_soon_threadsafe(found)

        threading.Thread(target=watch, name="watch", daemon=True).start()
        return is_over.set

    async def close(self, timeout_s: float) -> bool:
        """Wait until all queued functions have run, and let the thread end.

        Returns:
            Whether they had all run within the time.
        """
        drained = self._put(LAST, lambda: None)
        self.abandon()
        done, _ = await asyncio.wait([drained], timeout=timeout_s)
        return bool(done)

    def abandon(self) -> None:
        """Let the thread end when it has done what was handed over; wait for nothing."""
        self._queue.put((LAST, next(self._numbers), None, None))

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

        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits for the future
            self._loop.call_soon_threadsafe(settle)
