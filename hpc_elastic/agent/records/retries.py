"""Disk work that is done again when it fails: a file server that fails over refuses what it does a moment later.

Only what the file system says is asked for again (`FileSystemError`). What the records say, that a run is over or
another head was faster, is an answer.
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
PAUSES_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)  # the last one again and again


async def retry(
    work: Callable[[], Awaitable[T]], *, say: Callable[[str], None], is_wanted: Callable[[], bool] = lambda: True
) -> T:
    """Does the work until the file system takes it.

    Args:
        work: to be done; a second time as if it were the first.
        say: takes a line for people, at the first failure.
        is_wanted: whether it is worth another try.

    Raises:
        FileSystemError: that of the last try, when the time for them is over.
    """
    patience = _Patience(say, FOR_S, asyncio.get_running_loop().time)
    while True:
        try:
            return await work()
        except FileSystemError as error:
            if not is_wanted():
                raise
            pause = patience.pause_after(error)
        await asyncio.sleep(pause)


def retry_here(
    work: Callable[[], T], *, say: Callable[[str], None] = lambda _: None, within_s: float | None = None
) -> T:
    """The same in a thread that may wait, for so many seconds at most (None: as long as `retry`).

    Raises:
        FileSystemError: that of the last try.
    """
    patience = _Patience(say, FOR_S if within_s is None else within_s, time.monotonic)
    while True:
        try:
            return work()
        except FileSystemError as error:
            pause = patience.pause_after(error)
        time.sleep(pause)


class _Patience:
    """What is left of the time for one piece of work, from its first failure on: a try itself may take minutes."""

    def __init__(self, say: Callable[[str], None], for_s: float, now: Callable[[], float]) -> None:
        self._now = now
        self._say = say
        self._for_s = for_s
        self._ends: float | None = None
        self._pauses = itertools.chain(PAUSES_S, itertools.repeat(PAUSES_S[-1]))

    def pause_after(self, error: FileSystemError) -> float:
        """How long to wait for the next try, in seconds.

        Raises:
            FileSystemError: this one, for the time is over.
        """
        if self._ends is None:
            self._ends = self._now() + self._for_s
            self._say(f"{error.message}; trying again for up to {self._for_s:g} s")
        elif self._now() >= self._ends:
            raise error
        return next(self._pauses)
