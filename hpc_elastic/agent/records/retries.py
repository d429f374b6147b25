"""Retries disk work that fails: a file server during a failover refuses what it accepts a moment later.

Only errors of the file system (`FileSystemError`) are retried. What the records say, for example that a run is over or
that another head was faster, is an answer and not retried.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from hpc_elastic.errors import FileSystemError

T = TypeVar("T")
FOR_S = 30.0
PAUSES_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)  # the last pause repeats


async def retry(
    work: Callable[[], Awaitable[T]],
    *,
    say: Callable[[str], None],
    is_wanted: Callable[[], bool] = lambda: True,
    within_s: float = FOR_S,
) -> T:
    """Repeat the work until the file system accepts it.

    Args:
        work: the work; it must be safe to repeat.
        say: takes a line for people, at the first failure.
        is_wanted: returns whether another try is still useful.
        within_s: for how many seconds after the first failure the work is tried again.

    Raises:
        FileSystemError: the error of the last try, when the time is over or no other try is wanted.
    """
    patience = _Patience(say, within_s, asyncio.get_running_loop().time)
    while True:
        try:
            return await work()
        except FileSystemError as error:
            if not is_wanted():
                raise
            pause = patience.pause_after(error)
        await asyncio.sleep(pause)


def retry_here(work: Callable[[], T], *, say: Callable[[str], None] = lambda _: None, within_s: float = FOR_S) -> T:
    """Do as `retry`, in a thread that may block.

    Raises:
        FileSystemError: the error of the last try.
    """
    patience = _Patience(say, within_s, time.monotonic)
    while True:
        try:
            return work()
        except FileSystemError as error:
            pause = patience.pause_after(error)
        time.sleep(pause)


class _Patience:
    """The time left to retry one piece of work, counted from its first failure, since a try itself may take minutes."""

    def __init__(self, say: Callable[[str], None], for_s: float, now: Callable[[], float]) -> None:
        self._now = now
        self._say = say
        self._for_s = for_s
        self._ends: float | None = None
        self._pauses = itertools.chain(PAUSES_S, itertools.repeat(PAUSES_S[-1]))

    def pause_after(self, error: FileSystemError) -> float:
        """Return how long to wait before the next try, in seconds.

        Raises:
            FileSystemError: the given error, if the time is over.
        """
        if self._ends is None:
            self._ends = self._now() + self._for_s
            self._say(f"{error.message}; trying again for up to {self._for_s:g} s")
        elif self._now() >= self._ends:
            raise error
        return next(self._pauses)
