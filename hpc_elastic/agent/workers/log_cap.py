"""Keeps a worker's log below a size: copies its end beside it, and starts it anew.

A worker appends to a file that it has open, so the file cannot be renamed away under it. Its end is
copied to a second file, and it is cut to nothing, as logrotate's `copytruncate` does. What is written
in the moment between the last look and the cut is lost; nothing is done between them, but another
thread may have its turn.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass

from hpc_elastic.rundir.store import FILE_MODE, write_all

CHUNK_BYTES = 64 * 1024
# A worker that writes faster than we copy must not keep us from cutting.
MOST_WHILE_COPYING = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCap:
    """A log and where its earlier part goes; both together have at most about `most_bytes`."""

    path: str
    earlier: str
    most_bytes: int

    @property
    def half(self) -> int:
        """The size at which the log is cut, and how much of it is kept."""
        return self.most_bytes // 2


def is_due(cap: LogCap) -> bool:
    """Whether the log has grown too large."""
    try:
        return os.stat(cap.path).st_size > cap.half
    except OSError:
        return False


def cut_log(cap: LogCap, follow: Callable[[int, bytes], None] | None = None) -> bool:
    """Moves the end of the log to `earlier`, whose former content goes, and leaves the log empty.

    Args:
        cap: which log.
        follow: told of each chunk that is moved: its offset in the log, and the bytes.

    Returns:
        Whether it was done; not on a disk that is full, say.
    """
    beside = f"{cap.earlier}.tmp"
    try:
        with open(cap.path, "r+b", buffering=0) as log, open(_create(beside), "wb", buffering=0) as copy:
            offset = max(0, os.fstat(log.fileno()).st_size - cap.half)
            end = offset + cap.half + MOST_WHILE_COPYING
            log.seek(offset)
            is_whole = offset == 0
            while offset < end and (chunk := log.read(CHUNK_BYTES)):
                if follow is not None:
                    follow(offset, chunk)
                offset += len(chunk)
                if not is_whole:  # the first line that is whole is the first that is kept
                    _, newline, chunk = chunk.partition(b"\n")
                    is_whole = bool(newline)
                write_all(copy.fileno(), chunk)
            os.ftruncate(log.fileno(), 0)
        os.replace(beside, cap.earlier)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        return False
    return True


def _create(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
