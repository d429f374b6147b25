"""Reads the output of many ranks of an attempt as lines with times, in the order of the times.

Theory of operation. Workers write straight to their files, so a line has no time of its own. Once a second each agent
writes a mark: how long each of its ranks' files is now. A line has the time of the first mark that covers its end: it
was written at that time or up to a second (in long attempts up to 16 s) before. Lines behind the last mark, and files
without marks, have the time at which their file was last written. Lines of one file always keep their order.
"""

from __future__ import annotations

import heapq
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.store import read_lines

MOST_IN_MEMORY = 256 * 1024 * 1024
LARGEST_CHUNK, SMALLEST_CHUNK = 1024 * 1024, 16 * 1024

Marks = Sequence[tuple[int, int]]  # sizes of a file with their times in ns, both of which only grow


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSource:
    """One stream of one rank; `index` orders what has the same time."""

    index: int
    rank: int
    node: str
    is_stderr: bool


class Batch(NamedTuple):
    """Lines of one source that have the same time, in Unix nanoseconds; without their newlines.

    Batches are ordered as tuples are, without a key function: a merge of 10,000 ranks compares them millions of times.
    """

    time_ns: int
    order: int  # the source's index
    source: LogSource
    lines: list[bytes]


class LogStream:
    """A log file that is read once from its beginning on, and again as it grows.

    Args:
        source: whose it is.
        path: the file, which may not exist yet.
        marks: the times at which it had which size.
        cut_ns: when its earlier part was cut off, for the lines in that; None if it was not or that is not known.
    """

    def __init__(self, source: LogSource, path: str, marks: Marks = (), *, cut_ns: int | None = None) -> None:
        self.source = source
        self._path = path
        self._sizes = [size for size, _ in marks]
        self._times = [time_ns for _, time_ns in marks]
        self._cut_ns = cut_ns
        self._offset = 0
        self._partial = b""
        self._is_new = True

    def batches(self, *, is_last: bool, chunk_bytes: int = LARGEST_CHUNK) -> Iterator[Batch]:
        """Yield the new complete lines, in time order; with `is_last` also a last line without a newline."""
        if self._is_new:
            self._is_new = False
            yield from self._earlier(chunk_bytes)
        status = _status(self._path)
        if status is None:
            return
        if status.st_size < self._offset:  # it was cut
            self._offset, self._partial = 0, b""
        for chunk in _chunks(self._path, self._offset, status.st_size, chunk_bytes):
            begin = self._offset - len(self._partial)
            self._offset += len(chunk)
            *lines, self._partial = (self._partial + chunk).split(b"\n")
            yield from self._timed(lines, begin, status.st_mtime_ns)
        if is_last and self._partial:
            last, self._partial = self._partial, b""
            yield from self._timed([last], self._offset - len(last) - 1, status.st_mtime_ns)

    def _earlier(self, chunk_bytes: int) -> Iterator[Batch]:
        path = RunLayout.earlier(self._path)
        status = _status(path)
        if status is None:
            return
        first_ns = self._times[0] if self._times else status.st_mtime_ns
        time_ns = min(first_ns, status.st_mtime_ns if self._cut_ns is None else self._cut_ns)
        for chunk in _chunks(path, 0, status.st_size, chunk_bytes):
            *lines, self._partial = (self._partial + chunk).split(b"\n")
            if lines:
                yield Batch(time_ns, self.source.index, self.source, lines)

    def _timed(self, lines: list[bytes], begin: int, written_ns: int) -> Iterator[Batch]:
        """Yield lines that begin at an offset of the file, those of each mark together."""
        later_ns = max(written_ns, self._times[-1]) if self._times else written_ns
        first, end = 0, begin
        mark = bisect_left(self._sizes, begin + 1)
        for number, line in enumerate(lines):
            line_end = end + len(line) + 1
            if mark < len(self._sizes) and line_end > self._sizes[mark]:
                if number > first:
                    yield Batch(self._times[mark], self.source.index, self.source, lines[first:number])
                first = number
                mark = bisect_left(self._sizes, line_end)
            end = line_end
        if len(lines) > first:
            time_ns = self._times[mark] if mark < len(self._times) else later_ns
            yield Batch(time_ns, self.source.index, self.source, lines[first:])


def merge(streams: Iterable[LogStream], *, is_last: bool = True) -> Iterator[Batch]:
    """Yield the lines of all streams in the order of their times; those of one stream keep their order."""
    listed = list(streams)
    chunk_bytes = max(SMALLEST_CHUNK, min(LARGEST_CHUNK, MOST_IN_MEMORY // max(1, len(listed))))
    readers = [stream.batches(is_last=is_last, chunk_bytes=chunk_bytes) for stream in listed]
    return heapq.merge(*readers)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """A rank, its node, and the attempt in which it was started: an older one if its role ran on."""

    rank: int
    node: str
    attempt: int


def open_streams(
    layout: RunLayout, places: Iterable[RankPlace], *, with_stdout: bool = True, with_stderr: bool = True
) -> list[LogStream]:
    """Return the streams of these ranks; files that do not exist (yet) are among them."""
    marks: dict[tuple[int, str], _NodeMarks] = {}
    wanted = [is_stderr for is_stderr, is_wanted in ((False, with_stdout), (True, with_stderr)) if is_wanted]
    streams: list[LogStream] = []
    for place in sorted(places, key=attrgetter("rank")):
        key = (place.attempt, place.node)
        if key not in marks:
            marks[key] = _read_marks(layout, *key)
        for is_stderr in wanted:
            source = LogSource(index=len(streams), rank=place.rank, node=place.node, is_stderr=is_stderr)
            path = (layout.stderr if is_stderr else layout.stdout)(place.attempt, place.rank)
            of_file = marks[key].get(f"{place.rank}.{'stderr' if is_stderr else 'stdout'}", _FileMarks([], None))
            streams.append(LogStream(source, path, of_file.marks, cut_ns=of_file.cut_ns))
    return streams


@dataclass(frozen=True, slots=True)
class _FileMarks:
    marks: list[tuple[int, int]]
    cut_ns: int | None


_NodeMarks = Mapping[str, _FileMarks]


def _read_marks(layout: RunLayout, attempt: int, node: str) -> _NodeMarks:
    """Return the marks of a node's files since each was last cut."""
    found: dict[str, _FileMarks] = {}
    latest_ns = 0
    for line in read_lines(layout.log_marks(attempt, node)):
        ends, time_ns = (line.get("ends"), line.get("time_ns")) if isinstance(line, dict) else (None, None)
        if not isinstance(ends, dict) or not isinstance(time_ns, int):
            continue
        latest_ns = max(latest_ns, time_ns)  # a clock may be set back
        for name, size in ends.items():
            if not isinstance(size, int):
                continue
            known = found.get(name)
            if known is None:
                found[name] = _FileMarks([(size, latest_ns)], None)
            elif known.marks[-1][0] > size:  # a smaller size says that the log was cut
                found[name] = _FileMarks([(size, latest_ns)], latest_ns)
            elif known.marks[-1][0] < size:
                known.marks.append((size, latest_ns))
    return found


def _chunks(path: str, begin: int, end: int, chunk_bytes: int) -> Iterator[bytes]:
    """Yield a file's bytes; it is open only while it is read, because there may be more files than descriptors."""
    while begin < end:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        try:
            chunk = os.pread(descriptor, min(chunk_bytes, end - begin), begin)
        except OSError:
            return
        finally:
            os.close(descriptor)
        if not chunk:
            return
        begin += len(chunk)
        yield chunk


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None
