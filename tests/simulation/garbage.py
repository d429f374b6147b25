"""What is done about the garbage of simulated runs: it is cleared away when a run is over, and not while it is played.

Theory of operation. All that a run has made refers to each other: when it is over, the collector alone finds that it is
garbage, of which there are some 8,000 objects and a megabyte. To look for it while a run is played takes a fifth of the
time and finds nothing; right after it takes a millisecond, and the next run has the same memory, which is in the
processor's caches: as quick as to leave all garbage. Tests, which hold more than runs, look for it when it is much.
"""

from __future__ import annotations

import gc
import resource
from pathlib import Path

RARELY = 50_000, 20, 100  # the oldest is what the run that is played has, and then it is garbage as a whole
GROWS_BY_MB = 150  # a process of tests


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


def collect_between_runs() -> None:
    """What is loaded by now lives as long as the process, and nobody looks for garbage but `collect`."""
    collect_rarely()
    gc.disable()


def collect() -> None:
    """Clear away a run that is over, which nothing refers to any more."""
    gc.collect()
