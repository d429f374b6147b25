"""Keeps a worker's log below a size: copies its end to a second file, and truncates it.

A worker appends to a file that it has open, so the file cannot be replaced by a rename. Its end is
copied to a second file, and it is truncated to nothing, as logrotate's `copytruncate` does. What is written
between the last read and the truncation is lost; the code does nothing between them, but another
thread may run.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass

from hpc_elastic.rundir.store import FILE_MODE, write_all

CHUNK_BYTES = 64 * 1024
# A worker that writes faster than the copy reads must not prevent the truncation.
MOST_WHILE_COPYING = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCap:
    """The paths of a log and of its earlier part, which together have at most about `most_bytes`."""

    path: str
    earlier: str
    most_bytes: int

    @property
    def half(self) -> int:
        """The size at which the log is cut, and how much of it is kept."""
        return self.most_bytes // 2


def is_due(cap: LogCap) -> bool:
    """Return whether the log has grown too large."""
    try:
        return os.stat(cap.path).st_size > cap.half
    except OSError:
        return False


def cut_log(cap: LogCap, follow: Callable[[int, bytes], None] | None = None) -> bool:
    """Move the end of the log to `earlier`, whose former content is lost, and leave the log empty.

    Args:
        cap: the log.
        follow: called with each chunk that is moved: its offset in the log, and the bytes.

    Returns:
        Whether it was done; false on a full disk, for example.
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
                if not is_whole:  # drop the partial line at the start of the copied part
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
