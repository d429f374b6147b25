"""Measures how much file systems have left, with a bound on the time, because one that hangs answers never."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from hpc_elastic.failures.evidence import FreeSpace
from hpc_elastic.rundir.full_disk import lacks_only_inodes

# Those whose server is this node's kernel. A network's file system may hang for good, and with it the thread that asks.
_LOCAL_TYPES = {"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"}
_KERNELS_PLACES = ("/dev", "/proc", "/sys")
_MOST_MOUNTS = 32
_OCTAL = re.compile(r"\\([0-7]{3})")  # how mountinfo writes a space


def read_local_mounts() -> tuple[str, ...]:
    """Return where local file systems are mounted that can be written to, () if the kernel does not say."""
    try:
        return parse_local_mounts(Path("/proc/self/mountinfo").read_text(errors="surrogateescape"))
    except OSError:
        return ()


def parse_local_mounts(text: str) -> tuple[str, ...]:
    """Return the mount points of local file systems that can be written to, each file system once.

    Args:
        text: the content of /proc/PID/mountinfo (proc_pid_mountinfo(5)).
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")[0]
        if len(fields) < 6 or kind not in _LOCAL_TYPES or "ro" in fields[5].split(","):
            continue
        place = _OCTAL.sub(lambda code: chr(int(code[1], 8)), fields[4])
        if not any(place == each or place.startswith(f"{each}/") for each in _KERNELS_PLACES):
            found.setdefault(fields[2], place)  # by its device: bind mounts show the same again
    return tuple(found.values())[:_MOST_MOUNTS]


class FreeSpaceProbe:
    """The measure of some file systems; one that did not answer is not asked again until it does.

    Args:
        places: what people call each file system, and a path in it.
    """

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = dict(places)
        self._asked: dict[str, threading.Thread] = {}

    def measure(self, within_s: float, more: Iterable[str] = ()) -> tuple[FreeSpace, ...]:
        """Return what each file system has left, but for those that do not answer in time, or do not exist.

        Args:
            within_s: how long to wait for the answers.
            more: paths that are asked of too; left out are those of a file system that can only be read, which is full
                by its nature, and those of one that is measured already.
        """
        answers: dict[str, FreeSpace] = {}
        read_only: set[str] = set()
        places = {path: path for path in more} | self._places
        asked = [
            self._ask(place, path, answers, read_only) for place, path in places.items() if not self._is_hung(place)
        ]
        deadline = time.monotonic() + within_s
        for thread in asked:
            thread.join(max(0.0, deadline - time.monotonic()))
        own = [answers[place] for place in self._places if place in answers]
        others = [answers[place] for place in places if place not in self._places and place in answers]
        return (*own, *_others(own, [each for each in others if each.place not in read_only]))

    def _is_hung(self, place: str) -> bool:
        return place in self._asked and self._asked[place].is_alive()

    def _ask(self, place: str, path: str, answers: dict[str, FreeSpace], read_only: set[str]) -> threading.Thread:
        def ask() -> None:
            try:
                found = os.statvfs(path)
            except OSError:
                return
            total, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
            if found.f_flag & os.ST_RDONLY:
                read_only.add(place)
            files = found.f_files if lacks_only_inodes(found) else 0
            answers[place] = FreeSpace(place=place, free=free, total=total, files=files)

        thread = self._asked[place] = threading.Thread(target=ask, name=f"statvfs {place}", daemon=True)
        thread.start()
        return thread


def _others(known: list[FreeSpace], found: list[FreeSpace]) -> list[FreeSpace]:
    """Return those of the found ones that are not, by their sizes, a file system that is known, or found before."""
    sizes = {(each.free, each.total) for each in known}
    kept = []
    for each in found:
        if (each.free, each.total) not in sizes:
            kept.append(each)
            sizes.add((each.free, each.total))
    return kept
