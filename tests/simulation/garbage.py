"""What is done about the garbage of simulated runs: little, for to look for it takes a fifth of the time of playing.

Theory of operation. All that a run has made refers to each other: when it is over, the collector alone finds that it is
garbage, of which there are some 8,000 objects and a megabyte. So it is looked for seldom; and who plays many runs does
so in children, which have no collector and end when they have grown.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import resource
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TypeVar

T = TypeVar("T")
RARELY = 50_000, 20, 100  # the oldest is what the run that is played has, and then it is garbage as a whole
GROWS_BY_MB = 150  # a child, or the process of tests


class Held:
    """The memory that a process holds, most of it garbage that nobody has looked for."""

    def __init__(self, *, grows_by_mb: float = GROWS_BY_MB) -> None:
        self._grows_by_mb = grows_by_mb
        self._most_mb = resident_mb() + grows_by_mb

    def collect_if_grown(self) -> bool:
        """Collect the garbage if the process has grown since the last time; return whether it has."""
        if resident_mb() <= self._most_mb:
            return False
        gc.collect()
        self._most_mb = resident_mb() + self._grows_by_mb
        return True


def resident_mb() -> float:
    """Return how much memory this process holds now; that of its children is not in it (proc_pid_statm(5))."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def collect_rarely() -> None:
    """What is loaded by now lives as long as the process, so that no collection goes through it, and few are made."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*RARELY)


def in_children(seeds: Sequence[int], play: Callable[[int], T], *, grows_by_mb: float = GROWS_BY_MB) -> Iterator[T]:
    """Yield what `play` returns of each seed, which is pickled: one after the other, in children of this process.

    Args:
        seeds: in this order.
        play: what is done with one.
        grows_by_mb: a child that has grown by as much plays no further seed.

    Raises:
        RuntimeError: a child has ended before it should; what it died of is on standard error.
    """
    left = deque(seeds)
    while left:
        sys.stdout.flush()
        ours, theirs = os.pipe()
        child = os.fork()
        if not child:
            os.close(ours)
            _play_and_exit(left, play, os.fdopen(theirs, "wb"), grows_by_mb)
        os.close(theirs)
        with os.fdopen(ours, "rb") as pipe, contextlib.suppress(EOFError):
            while True:
                yield pickle.load(pipe)
                left.popleft()
        _, status = os.waitpid(child, 0)
        if status:
            raise RuntimeError(f"the process that played seed {left[0] if left else seeds[-1]} ended with {status}")


def _play_and_exit(seeds: deque[int], play: Callable[[int], T], pipe: IO[bytes], grows_by_mb: float) -> None:
    """In a child; nothing of it is cleared away, and whoever reads has what was played."""
    code = 1
    try:
        gc.disable()
        most_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + 1024 * grows_by_mb
        for seed in seeds:
            pickle.dump(play(seed), pipe)
            pipe.flush()
            if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > most_kb:
                break
        code = 0
    except BaseException:  # whatever it is: a child must not go on as if it were its parent
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
