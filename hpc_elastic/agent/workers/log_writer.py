"""Writes a log of which the agent is the only writer, and keeps it below a size.

Theory of operation. A log that has reached half of its size is renamed to its earlier part, whose former content is
lost, and a new one is begun. Nothing is copied, so no line is lost at the cut. The cut is at the end of a line, unless
one line alone is longer than the half. The new file is made before the former earlier part is removed, so that two
files which follow each other are never taken for one by their inode. What a disk refuses is dropped, whole, and
counted: a full disk costs lines, and neither stops the ranks nor leaves half a line.
"""

from __future__ import annotations

import contextlib
import os

from hpc_elastic.rundir.store import FILE_MODE, make_directory, write_all


class LogWriter:
    """Appends to a log file, which may have content already.

    Args:
        path: the file.
        earlier: where its earlier part goes.
        most_bytes: what both may take together; None: no bound, and no earlier part.
    """

    def __init__(self, path: str, earlier: str, most_bytes: int | None = None) -> None:
        self.path = path
        self._earlier = earlier
        self._half = None if most_bytes is None else most_bytes // 2
        self._descriptor: int | None = None
        self._size = 0
        self._is_in_line = False  # whether the file ends with an incomplete line
        self.lost_lines = 0  # lines that the disk refused since the last one that it took
        self.last_error: OSError | None = None

    def open(self) -> None:
        """Create the file, so that an empty one says that nothing was written; trouble shows at the first line."""
        with contextlib.suppress(OSError):
            self._open()

    def append(self, content: bytes) -> bool:
        """Append bytes, and cut the log where it is due; return whether the disk took them."""
        try:
            if self._half is None:
                self._write(content)
            else:
                self._append_within(content, self._half)
        except OSError as error:
            self.last_error = error
            self.lost_lines += max(1, content.count(b"\n"))
            self.close()  # a stale handle is no use, and a file server may be back at the next line
            return False
        return True

    def close(self) -> None:
        """Close the file; a later line opens it again."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _append_within(self, content: bytes, half: int) -> None:
        self._open()
        while content:
            room = max(0, half - self._size)
            if len(content) <= room:
                self._write(content)
                return
            cut = content.rfind(b"\n", 0, room) + 1
            if not cut and (self._is_in_line or not self._size):
                end = content.find(b"\n") + 1  # of the line that has begun
                cut = end if end and self._size + end <= 2 * half else max(1, room)
            if cut:
                self._write(content[:cut])
                content = content[cut:]
            self._cut()

    def _cut(self) -> None:
        """Begin a new file, and keep this one as the earlier part."""
        beside = f"{self.path}.tmp"
        descriptor = _open(beside, os.O_TRUNC)
        try:
            os.rename(self.path, self._earlier)
            os.rename(beside, self.path)
        except OSError:
            os.close(descriptor)
            raise
        self.close()
        self._descriptor, self._size, self._is_in_line = descriptor, 0, False

    def _open(self) -> int:
        if self._descriptor is None:
            make_directory(os.path.dirname(self.path))
            descriptor = _open(self.path, 0)
            self._descriptor, self._size = descriptor, os.fstat(descriptor).st_size
        return self._descriptor

    def _write(self, content: bytes) -> None:
        descriptor = self._open()
        try:
            write_all(descriptor, content)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, self._size)
            raise
        self._size += len(content)
        self._is_in_line = not content.endswith(b"\n")


def _open(path: str, flags: int) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | flags, FILE_MODE)
