"""Copies large memory with several threads, because one thread cannot use the bandwidth of a machine's memory.

Theory of operation. The memory is divided into parts, which this thread and others take from one queue. The others live
as long as one copy, so that a training that forks between two saves forks none of them, and nothing depends on whether
and when they start. Whatever a signal's handler raises, the copy ends with no part in work: none is taken any more, and
those that are taken are waited for.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import functools
import os
import queue
import sys
from collections import deque
from collections.abc import Iterator, Sequence

from hpc_elastic.aligned_memory import populate
from hpc_elastic.cgroup_cpus import cpu_quotas

THREADS = 4
PART_BYTES = 4 * 1024 * 1024  # which takes ten times as long as the start of a thread
COPIED_AT_ONCE = 2 * 1024 * 1024  # what the kernel has cleared of new memory is in a cache still when it is written
_LOOKS_S = 0.05  # at what is finished, at the latest

Span = tuple[int, int, int]
"""Where to, where from, and how many bytes; the first two are addresses."""


def copy_spans(spans: Sequence[Span], *, is_new: bool = False, cpus: int | None = None) -> None:
    """Copy all of the memory, or raise; then no thread copies any more.

    What it raises is what a signal's handler has raised meanwhile, or what has kept another thread from its part.

    Args:
        spans: what to copy; targets do not overlap.
        is_new: no page of the targets has been touched yet.
        cpus: how many processors this process may use; None: ask the kernel.
    """
    parts = split_spans(spans, PART_BYTES)
    copy = _Copy(parts, is_new=is_new)
    raised: BaseException | None = None
    try:
        for _ in range(1, min(_threads(usable_cpus() if cpus is None else cpus), len(parts))):
            try:
                _thread.start_new_thread(copy.help, ())  # that of threading waits until the thread runs
            except RuntimeError:  # there can be no more threads
                break
        copy.work()
    except BaseException as error:
        raised = error
    while True:
        try:
            copy.end()
            break
        except BaseException as error:
            raised = error
    if raised is not None or copy.errors:
        raise raised or copy.errors[0]


def split_spans(spans: Sequence[Span], size: int) -> list[list[Span]]:
    """Return the same memory in parts of so many bytes, but for the last one."""
    parts: list[list[Span]] = []
    room = 0
    for target, source, length in spans:
        while length:
            if not room:
                parts.append([])
                room = size
            taken = min(length, room)
            parts[-1].append((target, source, taken))
            target, source, length, room = target + taken, source + taken, length - taken, room - taken
    return parts


class _Copy:
    """One copy: the parts that are waiting, and how often another thread has begun to take one and has ended.

    Each change is one call, and needs no lock. The thread that calls `end` copies nothing then, whatever has brought it
    there; so only the parts of the others count.
    """

    def __init__(self, parts: Sequence[Sequence[Span]], *, is_new: bool) -> None:
        self._waiting = deque(parts)
        self._is_new = is_new
        self._begun: list[None] = []
        self._ended: list[None] = []
        self._news: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.errors: list[BaseException] = []

    def work(self) -> None:
        """Copy parts as long as some are waiting."""
        while self._copy_one():
            pass

    def help(self) -> None:
        """Copy parts as long as some are waiting, in another thread."""
        is_more = True
        while is_more:
            self._begun.append(None)
            try:
                is_more = self._copy_one()
            except BaseException as error:
                self.errors.append(error)
                return
            finally:
                self._ended.append(None)
                self._news.put(None)

    def end(self) -> None:
        """Take away what is waiting, and wait for the other threads; to be called again if a handler raises here."""
        self._waiting.clear()
        while len(self._ended) < len(self._begun):
            with contextlib.suppress(queue.Empty):
                self._news.get(timeout=_LOOKS_S)

    def _copy_one(self) -> bool:
        """Copy a part; return whether there was one."""
        try:
            part = self._waiting.popleft()
        except IndexError:
            return False
        for target, source, length in _pieces(part) if self._is_new else part:
            if self._is_new:
                populate(target, length)
            ctypes.memmove(target, source, length)
        return True


def _pieces(spans: Sequence[Span]) -> Iterator[Span]:
    for target, source, length in spans:
        for begin in range(0, length, COPIED_AT_ONCE):
            yield target + begin, source + begin, min(COPIED_AT_ONCE, length - begin)


def _threads(cpus: int) -> int:
    """Return how many threads copy: one more than processors, up to `THREADS`.

    The kernel may put a new thread on the processor of the thread that has started it. It moves one of three at once,
    and one of two after a time in which all is copied (two processors, 100 MiB: 9.7 and 14.5 ms, n = 25).
    """
    return min(THREADS, cpus + 1) if cpus > 1 else 1


def usable_cpus(*, root: str = "/") -> int:
    """Return how many processors this process may use: those of its affinity, as far as its cgroups' quotas go.

    A process with more threads at work than its quota stands still for the rest of each period, with all its threads.

    Args:
        root: the directory that holds /proc and /sys.
    """
    with contextlib.suppress(AttributeError, OSError):
        return max(1, min(len(os.sched_getaffinity(0)), _quota(root)))
    return 1


@functools.cache
def _quota(root: str) -> int:
    """Return how many processors the cgroups allow; cached, because to read them takes 0.1 ms."""
    return min(map(int, cpu_quotas(root)), default=sys.maxsize)
