"""Reads a log as it grows, over the cuts that `logs.max_size` makes, each byte once.

Theory of operation. The writer cuts a log by renaming it to its earlier part and beginning a new one. A reader
remembers which file it was in (its inode, and the last bytes that it read, because inodes are used again) and how far.
After a cut that file is the earlier part: the reader goes on there, and then with the new file from its beginning.
After several cuts between two looks the file is gone, and so are lines that nobody could read any more: there is a
gap, and the reader goes on with what is left.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import NamedTuple

from hpc_elastic.rundir.layout import RunLayout

LAST_BYTES = 64
BACKWARD_BYTES = 64 * 1024
OPEN_TRIES = 50
OPEN_AGAIN_S = 0.002


class Chunk(NamedTuple):
    """Bytes of a log at an offset of its file; with a gap, what was read before does not continue here."""

    offset: int
    content: bytes
    is_earlier: bool
    is_after_gap: bool
    written_ns: int  # when its file was last written


class GrowingFile:
    """A log, which may not exist yet, and its earlier part. It is open only while it is read.

    Args:
        path: the log.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.forbidden = ""  # the path, if the last look found that this user may not read the file
        self._identity: tuple[int, int] | None = None
        self._offset = 0
        self._last = b""

    def chunks(self, chunk_bytes: int) -> Iterator[Chunk]:
        """Yield what was added since the last call, at first all there is, in pieces of at most `chunk_bytes`."""
        if self._identity is not None and self._is_unchanged():
            return
        current, earlier = _open_both(self.path)
        try:
            if current is None and earlier is None:
                self.forbidden = self.path if _is_forbidden(self.path) else ""
                return
            self.forbidden = ""
            if self._identity is None:
                yield from self._read_from_start(earlier, current, chunk_bytes, has_gap=False)
            elif current is not None and self._is_in(current):
                yield from self._read(current, chunk_bytes, is_earlier=False)
            elif earlier is not None and self._is_in(earlier):
                yield from self._read(earlier, chunk_bytes, is_earlier=True)
                yield from self._read_from_start(None, current, chunk_bytes, has_gap=False)
            else:
                is_truncated = current is not None and _identity(os.fstat(current)) == self._identity
                yield from self._read_from_start(None if is_truncated else earlier, current, chunk_bytes, has_gap=True)
        except OSError:  # a file server's trouble: the next look goes on from here
            return
        finally:
            for descriptor in (current, earlier):
                if descriptor is not None:
                    os.close(descriptor)

    def begin_at_last(self, lines: int) -> None:
        """Begin the first read with the last lines, a few more perhaps; with all there is if the log has fewer.

        The log is read from its end back to there, so that one of gigabytes costs no more than a short one.
        """
        if (descriptor := _open(self.path)) is None:
            return
        try:
            status = os.fstat(descriptor)
            if offset := _offset_of_last(descriptor, status.st_size, lines):
                kept = min(LAST_BYTES, offset)
                self._last = os.pread(descriptor, kept, offset - kept)
                self._identity, self._offset = _identity(status), offset
        except OSError:
            return
        finally:
            os.close(descriptor)

    def _is_unchanged(self) -> bool:
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

    def _read_from_start(
        self, earlier: int | None, current: int | None, chunk_bytes: int, *, has_gap: bool
    ) -> Iterator[Chunk]:
        for descriptor in (earlier, current):
            if descriptor is not None:
                self._identity, self._offset, self._last = _identity(os.fstat(descriptor)), 0, b""
                yield from self._read(descriptor, chunk_bytes, is_earlier=descriptor == earlier, has_gap=has_gap)
                has_gap = False

    def _read(self, descriptor: int, chunk_bytes: int, *, is_earlier: bool, has_gap: bool = False) -> Iterator[Chunk]:
        status = os.fstat(descriptor)
        while self._offset < status.st_size:
            begin = self._offset
            content = os.pread(descriptor, min(chunk_bytes, status.st_size - begin), begin)
            if not content:
                return
            self._offset = begin + len(content)
            self._last = content[-LAST_BYTES:] if len(content) >= LAST_BYTES else (self._last + content)[-LAST_BYTES:]
            yield Chunk(begin, content, is_earlier, has_gap, status.st_mtime_ns)
            has_gap = False


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
