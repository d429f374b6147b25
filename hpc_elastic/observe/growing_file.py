"""Reads a log as it grows, over the cuts that `logs.max_size` makes, each byte once.

Theory of operation. The writer cuts a log by renaming it to its earlier part and beginning a new one. A reader
remembers which file it was in (its inode, and the last bytes that it read, because inodes are used again) and how far.
After a cut that file is the earlier part: the reader goes on there, and then with the new file from its beginning.
After several cuts between two looks the file is gone, and so are lines that nobody could read any more: there is a
gap, and the reader goes on with what is left.

The writer may be on another machine. An NFS client answers `stat` by itself, for up to a minute with a size that was,
and asks the server when a file is opened. So a log that looks unchanged is opened all the same: at each look while
it grows, and every `ASKED_EVERY_S` when it was silent for long, because thousands of silent logs are looked at.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.new_names import ask_anew

LAST_BYTES = 64
BACKWARD_BYTES = 64 * 1024
OPEN_TRIES = 50
OPEN_AGAIN_S = 0.002
ASKED_EVERY_S = 3.0
SILENT_SHARE = 0.1  # of the time for which a log was silent


class Chunk(NamedTuple):
    """Bytes of a log at an offset of its file; with a gap, what was read before does not continue here."""

    offset: int
    content: bytes
    is_earlier: bool
    is_after_gap: bool
    written_ns: int  # when its file was last written


class GrowingFile:
    """A log, which may not exist yet, and its earlier part.

    It is open only while a chunk is read, not between two chunks: thousands of logs are read at a time.

    Args:
        path: the log.
        is_cut: whether the log may have an earlier part.
        last: the first look may begin with so many last lines, a few more perhaps; None: with all there is. The log is
            read from its end back to there, so that one of gigabytes costs no more than a short one.
        clock: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        path: str,
        *,
        is_cut: bool = True,
        last: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self._clock = clock
        self._opened = self._grew = clock()
        self.forbidden = ""  # the path, if the last look found that this user may not read the file
        self._is_cut = is_cut
        self._last_lines = last
        self._identity: tuple[int, int] | None = None
        self._offset = 0
        self._last = b""
        self._has_gap = False  # before the next chunk

    def chunks(self, chunk_bytes: int) -> Iterator[Chunk]:
        """Yield what was added since the last call, at first all there is, in pieces of at most `chunk_bytes`.

        What is added meanwhile is left to the next call.
        """
        if self._identity is not None and self._is_unchanged():
            return
        left: int | None = None  # bytes
        while left is None or left > 0:
            try:
                chunk, left = self._next_chunk(chunk_bytes, left)
            except OSError:  # a file server's trouble: the next look goes on from here
                return
            if chunk is None:
                return
            yield chunk

    def _next_chunk(self, chunk_bytes: int, left: int | None) -> tuple[Chunk | None, int]:
        """Read the next chunk; return it and how much is left after it of `left`, or of all there is now."""
        self._opened = self._clock()
        current, earlier = self._open()
        if current is None and earlier is None:
            ask_anew(self.path)
            current, earlier = self._open()
        lines, self._last_lines = self._last_lines, None
        try:
            if current is None and earlier is None:
                self.forbidden = self.path if _is_forbidden(self.path) else ""
                return None, 0
            self.forbidden = ""
            if lines is not None and current is not None:
                self._begin_at_last(current, lines)
            parts = [part for part in self._parts(current, earlier) if part is not None]
            sizes = [os.fstat(part).st_size - (0 if number else self._offset) for number, part in enumerate(parts)]
            left = sum(sizes) if left is None else left
            for number, (part, size) in enumerate(zip(parts, sizes, strict=True)):
                if number:
                    self._identity, self._offset, self._last = _identity(os.fstat(part)), 0, b""
                if size > 0:
                    chunk = self._read(part, min(chunk_bytes, left, size), is_earlier=part == earlier)
                    return chunk, left - len(chunk.content) if chunk else 0
            return None, 0
        finally:
            for descriptor in (current, earlier):
                if descriptor is not None:
                    os.close(descriptor)

    def _open(self) -> tuple[int | None, int | None]:
        return _open_both(self.path) if self._is_cut else (_open(self.path), None)

    def _parts(self, current: int | None, earlier: int | None) -> Sequence[int | None]:
        """Return the files to read, of which the first is the one that this reader is in now."""
        if self._identity is not None:
            if current is not None and self._is_in(current):
                return (current,)
            if earlier is not None and self._is_in(earlier):
                return earlier, current
            self._has_gap = True
            if current is not None and _identity(os.fstat(current)) == self._identity:
                earlier = None  # the log was truncated
        first = current if earlier is None else earlier
        if first is not None:
            self._identity, self._offset, self._last = _identity(os.fstat(first)), 0, b""
        return (first,) if first == current else (first, current)

    def _begin_at_last(self, descriptor: int, lines: int) -> None:
        """Begin with the last lines; with all there is if the log has fewer."""
        status = os.fstat(descriptor)
        if offset := _offset_of_last(descriptor, status.st_size, lines):
            kept = min(LAST_BYTES, offset)
            self._last = os.pread(descriptor, kept, offset - kept)
            self._identity, self._offset = _identity(status), offset

    def _is_unchanged(self) -> bool:
        if self._opened + min(ASKED_EVERY_S, SILENT_SHARE * (self._opened - self._grew)) <= self._clock():
            return False
        with contextlib.suppress(OSError):
            status = os.stat(self.path)
            return _identity(status) == self._identity and status.st_size == self._offset
        return False

    def _is_in(self, descriptor: int) -> bool:
        """Return whether this is the file that was read last."""
        status = os.fstat(descriptor)
        if _identity(status) != self._identity or status.st_size < self._offset:
            return False
        return os.pread(descriptor, len(self._last), self._offset - len(self._last)) == self._last

    def _read(self, descriptor: int, most: int, *, is_earlier: bool) -> Chunk | None:
        begin, has_gap = self._offset, self._has_gap
        content = os.pread(descriptor, most, begin)
        if not content:
            return None
        self._grew = self._opened
        self._offset, self._has_gap = begin + len(content), False
        self._last = content[-LAST_BYTES:] if len(content) >= LAST_BYTES else (self._last + content)[-LAST_BYTES:]
        return Chunk(begin, content, is_earlier, has_gap, os.fstat(descriptor).st_mtime_ns)


def _open_both(path: str) -> tuple[int | None, int | None]:
    """Open a log and its earlier part, such that one follows the other although a cut may come in between.

    Where cuts come faster than that can be found out, it is the log alone: what stood between is a gap.
    """
    for _ in range(OPEN_TRIES):
        current = _open(path)
        earlier = _open(RunLayout.earlier(path))
        if earlier is None:
            return current, None
        if current is not None:
            with contextlib.suppress(OSError):
                if _identity(os.stat(path)) == _identity(os.fstat(current)):
                    return current, earlier
            os.close(current)
        os.close(earlier)
        time.sleep(OPEN_AGAIN_S)  # the moment of a cut, in which there is no log
    return _open(path), None


def _is_forbidden(path: str) -> bool:
    """Return whether a file that could not be opened is kept from this user; one that is missing is not."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return isinstance(error, PermissionError)
    return False


def _offset_of_last(descriptor: int, size: int, lines: int) -> int:
    """Return where the last lines begin, one more if the last has no newline yet; 0 if there are fewer."""
    missing, end = lines + 1, size
    while end > 0:
        begin = max(0, end - BACKWARD_BYTES)
        content = os.pread(descriptor, end - begin, begin)
        found = content.count(b"\n")
        if found >= missing:
            at = len(content)
            for _ in range(missing):
                at = content.rindex(b"\n", 0, at)
            return begin + at + 1
        missing, end = missing - found, begin
    return 0


def _open(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
