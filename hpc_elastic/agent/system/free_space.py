"""Measures how much file systems have left, with a bound on the time, because one that hangs answers never."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping

from hpc_elastic.failures.evidence import FreeSpace


class FreeSpaceProbe:
    """The measure of some file systems; one that did not answer is not asked again until it does.

    Args:
        places: what people call each file system, and a path in it.
    """

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = dict(places)
        self._asked: dict[str, threading.Thread] = {}

    def measure(self, within_s: float) -> tuple[FreeSpace, ...]:
        """Return what each file system has left, but for those that do not answer in time, or do not exist."""
        answers: dict[str, FreeSpace] = {}
        asked = [self._ask(place, path, answers) for place, path in self._places.items() if not self._is_hung(place)]
        deadline = time.monotonic() + within_s
        for thread in asked:
            thread.join(max(0.0, deadline - time.monotonic()))
        return tuple(answers[place] for place in self._places if place in answers)

    def _is_hung(self, place: str) -> bool:
        return place in self._asked and self._asked[place].is_alive()

    def _ask(self, place: str, path: str, answers: dict[str, FreeSpace]) -> threading.Thread:
        def ask() -> None:
            try:
                found = os.statvfs(path)
            except OSError:
                return
            total, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
            answers[place] = FreeSpace(place=place, free=free, total=total)

        thread = self._asked[place] = threading.Thread(target=ask, name=f"statvfs {place}", daemon=True)
        thread.start()
        return thread
