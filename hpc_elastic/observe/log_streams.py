"""Reads the output of many ranks of an attempt as lines with times, in the order of the times.

Theory of operation. Where ranks have files of their own, a line has no time of its own. Once a second each agent
writes a mark: how long each of its ranks' files is now. A line has the time of the first mark that covers its end: it
was written at that time or up to a second (in long attempts up to 16 s) before. Lines behind the last mark, and files
without marks, have the time at which their file was last written. In a node's log each line has its time, and those
that the agent read at the same time are put together by rank. Lines of one stream of a rank always keep their order.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter, itemgetter
from typing import NamedTuple

from hpc_elastic.errors import FileSystemError
from hpc_elastic.observe.growing_file import GrowingFile
from hpc_elastic.observe.rank_output import has_node_logs, may_logs_be_cut
from hpc_elastic.observe.roster import RankPlace
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.node_log import parse_time, parse_writer
from hpc_elastic.rundir.store import read_lines

MOST_IN_MEMORY = 256 * 1024 * 1024
MOST_SORTED = 128 * 1024 * 1024
_LINE_BYTES, _BATCH_BYTES = 41, 208  # what Python needs beside the content: of a line in a list, and of a batch
LONGEST_LINE = 64 * 1024 * 1024  # of a file that a rank writes by itself; a longer one comes in pieces
LARGEST_CHUNK, SMALLEST_CHUNK = 1024 * 1024, 16 * 1024

_ORDER = itemgetter(0, 1)  # of batches: the time and the source's index; those of one source stay as they come
Marks = Sequence[tuple[int, int]]  # sizes of a file with their times in ns, both of which only grow


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSource:
    """One stream of one rank; `index` orders what has the same time."""

    index: int
    rank: int
    node: str
    is_stderr: bool


class Batch(NamedTuple):
    """Lines of one source that have the same time, in Unix nanoseconds; without their newlines."""

    time_ns: int
    order: int  # the source's index
    source: LogSource
    lines: list[bytes]


class LogStream:
    """A rank's log file that is read once from its beginning on, and again as it grows.

    Args:
        source: whose it is.
        path: the file, which may not exist yet.
        marks: the times at which it had which size.
        cut_ns: when its earlier part was cut off, for the lines in that; None if it was not or that is not known.
        last: only so many last lines are needed; None: all.
        is_cut: whether the log may have an earlier part, for which the file server is asked then.
        unread: the file of the marks, if this user may not read it; else empty.
    """

    def __init__(
        self,
        source: LogSource,
        path: str,
        marks: Marks = (),
        *,
        cut_ns: int | None = None,
        last: int | None = None,
        is_cut: bool = True,
        unread: str = "",
    ) -> None:
        self.source = source
        self._unread = unread
        self._file = GrowingFile(path, is_cut=is_cut, last=last)
        self._sizes = [size for size, _ in marks]
        self._times = [time_ns for _, time_ns in marks]
        self._cut_ns = cut_ns
        self._end = 0
        self._written_ns = 0
        self._partial = bytearray()  # a line may be long: it is put together from its chunks once

    def batches(self, *, is_last: bool, chunk_bytes: int = LARGEST_CHUNK) -> Iterator[Batch]:
        """Yield the new complete lines, in time order; with `is_last` also a last line without a newline."""
        for chunk in self._file.chunks(chunk_bytes):
            if chunk.is_after_gap:
                self._partial.clear()
            begin = chunk.offset - len(self._partial)
            self._end, self._written_ns = chunk.offset + len(chunk.content), chunk.written_ns
            lines = chunk.content.split(b"\n")
            self._partial += lines[0]
            if len(lines) > 1:
                lines[0], self._partial = bytes(self._partial), bytearray(lines.pop())
            elif len(self._partial) > LONGEST_LINE:
                lines[0] = self._take_piece()
            else:
                continue
            if chunk.is_earlier:
                first_ns = self._times[0] if self._times else chunk.written_ns
                time_ns = min(first_ns, chunk.written_ns if self._cut_ns is None else self._cut_ns)
                if lines:
                    yield Batch(time_ns, self.source.index, self.source, lines)
            else:
                yield from self._timed(lines, begin, chunk.written_ns)
        if is_last and self._partial:
            last, self._partial = bytes(self._partial), bytearray()
            yield from self._timed([last], self._end - len(last) - 1, self._written_ns)

    def _take_piece(self) -> bytes:
        """Take what there is of a line without an end; of a progress bar all but what it shows now."""
        end = self._partial.rfind(b"\r", 0, len(self._partial) - 1) + 1 or len(self._partial)
        piece = bytes(self._partial[:end])
        del self._partial[:end]
        return piece

    @property
    def forbidden(self) -> str:
        """The file, or that of its marks, if this user may not read it; else empty."""
        return self._file.forbidden or self._unread

    def is_of(self, ranks: Collection[int]) -> bool:
        """Return whether this is the log of one of these ranks."""
        return self.source.rank in ranks

    def _timed(self, lines: list[bytes], begin: int, written_ns: int) -> Iterator[Batch]:
        """Yield lines that begin at an offset of the file, those of each mark together."""
        later_ns = max(written_ns, self._times[-1]) if self._times else written_ns
        ends = list(accumulate(map(len, lines), initial=begin))  # without the newlines

        def end_of(number: int) -> int:
            return ends[number + 1] + number + 1

        first, count = 0, len(lines)
        while first < count:
            mark = bisect_left(self._sizes, end_of(first))
            if mark == len(self._sizes):
                yield Batch(later_ns, self.source.index, self.source, lines[first:] if first else lines)
                return
            step, known = 1, first  # most marks cover many lines, or one
            while known + step < count and end_of(known + step) <= self._sizes[mark]:
                known, step = known + step, 2 * step
            end = known + 1
            if step > 1:
                end = bisect_right(range(min(count, known + step)), self._sizes[mark], lo=end, key=end_of)
            yield Batch(self._times[mark], self.source.index, self.source, lines[first:end])
            first = end


class NodeLogStream:
    """A node's log that is read once from its beginning on, and again as it grows.

    Args:
        path: the file, which may not exist yet.
        sources: the streams of its ranks that are wanted.
    """

    def __init__(self, path: str, sources: Iterable[LogSource]) -> None:
        self._file = GrowingFile(path)
        self._sources = {source.index: source for source in sources}
        self._wanted = {(source.rank, source.is_stderr): source.index for source in self._sources.values()}
        self._writers: dict[bytes, tuple[int | None, bool]] = {}  # the index, and whether the line goes on
        self._partial = b""
        self._open: dict[int, bytearray] = {}  # lines of ranks that go on, by the source's index
        self._time = b""
        self._time_ns = 0

    def batches(self, *, is_last: bool, chunk_bytes: int = LARGEST_CHUNK) -> Iterator[Batch]:
        """Yield the new complete lines, in time order; with `is_last` also last lines without a newline."""
        for chunk in self._file.chunks(chunk_bytes):
            if chunk.is_after_gap:
                self._partial = b""
                self._open.clear()
            *lines, self._partial = (self._partial + chunk.content).split(b"\n")
            yield from self._batches(lines)
        if is_last and self._open:
            left, self._open = self._open, {}
            yield from self._take({index: [bytes(line)] for index, line in left.items()})

    @property
    def forbidden(self) -> str:
        """The file, if this user may not read it; else empty."""
        return self._file.forbidden

    def is_of(self, ranks: Collection[int]) -> bool:
        """Return whether one of these ranks writes to this log; those of a node start together."""
        return any(source.rank in ranks for source in self._sources.values())

    def _batches(self, lines: Iterable[bytes]) -> Iterator[Batch]:
        """Yield lines, those that the agent read from a stream at a time together."""
        together: dict[int, list[bytes]] = {}
        for line in lines:
            words = line.split(b" ", 3)
            if len(words) != 4:
                continue
            time, rank, stream, text = words
            if time != self._time:
                try:
                    time_ns = parse_time(time)
                except ValueError:
                    continue
                if together and time_ns > self._time_ns:
                    yield from self._take(together)
                    together = {}
                self._time, self._time_ns = time, max(self._time_ns, time_ns)
            writer = self._writers.get(rank + stream) or self._find_writer(rank, stream)
            index, is_open = writer
            if index is None:
                continue
            if is_open:
                self._open.setdefault(index, bytearray()).extend(text)
                continue
            if self._open and index in self._open:
                text = bytes(self._open.pop(index) + text)
            if index in together:
                together[index].append(text)
            else:
                together[index] = [text]
        yield from self._take(together)

    def _find_writer(self, rank: bytes, stream: bytes) -> tuple[int | None, bool]:
        parsed = parse_writer(rank, stream)
        index = None if parsed is None else self._wanted.get(parsed[:2])
        writer = index, parsed is not None and parsed[2]
        self._writers[rank + stream] = writer
        return writer

    def _take(self, together: dict[int, list[bytes]]) -> Iterator[Batch]:
        for index in sorted(together):
            yield Batch(self._time_ns, index, self._sources[index], together[index])


AnyStream = LogStream | NodeLogStream


def merge(streams: Iterable[AnyStream], *, is_last: bool = True) -> Iterator[Batch]:
    """Yield the lines of all streams in the order of their times; those of one stream keep their order."""
    listed = list(streams)
    chunk_bytes = max(SMALLEST_CHUNK, min(LARGEST_CHUNK, MOST_IN_MEMORY // max(1, len(listed))))
    return _merge([stream.batches(is_last=is_last, chunk_bytes=chunk_bytes) for stream in listed])


def _merge(readers: Sequence[Iterator[Batch]]) -> Iterator[Batch]:
    """Merge by one sort what fits into memory: that takes a third of the time of a heap of 20,000 streams."""
    first: list[Batch] = []
    count = 0
    for number, reader in enumerate(readers):
        for batch in reader:
            first.append(batch)
            count += sum(map(len, batch.lines)) + _LINE_BYTES * len(batch.lines) + _BATCH_BYTES
            if count > MOST_SORTED:
                first.sort(key=_ORDER)
                yield from heapq.merge(first, reader, *readers[number + 1 :], key=_ORDER)
                return
    first.sort(key=_ORDER)
    yield from first


def open_streams(
    layout: RunLayout,
    places: Iterable[RankPlace],
    *,
    with_stdout: bool = True,
    with_stderr: bool = True,
    last: int | None = None,
) -> list[AnyStream]:
    """Return the streams of these ranks; files that do not exist (yet) are among them.

    With `last` all but so many last lines of each may be left out; a node's log has them all. Marks that this user may
    not read are as good as none, and `forbidden` of the node's streams.
    """
    wanted = [is_stderr for is_stderr, is_wanted in ((False, with_stdout), (True, with_stderr)) if is_wanted]
    if has_node_logs(layout):
        return list(_open_node_logs(layout, places, wanted))
    is_cut = may_logs_be_cut(layout)
    marks: dict[tuple[int, str], tuple[_NodeMarks, str]] = {}
    streams: list[AnyStream] = []
    for place in sorted(places, key=attrgetter("rank")):
        key = (place.attempt, place.node)
        if key not in marks:
            marks[key] = _try_read_marks(layout, *key)
        of_node, unread = marks[key]
        for is_stderr in wanted:
            source = LogSource(index=len(streams), rank=place.rank, node=place.node, is_stderr=is_stderr)
            path = (layout.stderr if is_stderr else layout.stdout)(place.attempt, place.rank)
            of_file = of_node.get(f"{place.rank}.{'stderr' if is_stderr else 'stdout'}", _FileMarks([], None))
            stream = LogStream(
                source, path, of_file.marks, cut_ns=of_file.cut_ns, last=last, is_cut=is_cut, unread=unread
            )
            streams.append(stream)
    return streams


def _open_node_logs(layout: RunLayout, places: Iterable[RankPlace], wanted: Sequence[bool]) -> Iterator[NodeLogStream]:
    sources: dict[tuple[int, str], list[LogSource]] = {}
    count = 0
    for place in sorted(places, key=attrgetter("rank")):
        of_node = sources.setdefault((place.attempt, place.node), [])
        for is_stderr in wanted:
            of_node.append(LogSource(index=count, rank=place.rank, node=place.node, is_stderr=is_stderr))
            count += 1
    for (attempt, node), of_node in sources.items():
        yield NodeLogStream(layout.node_log(attempt, node), of_node)


@dataclass(frozen=True, slots=True)
class _FileMarks:
    marks: list[tuple[int, int]]
    cut_ns: int | None


_NodeMarks = Mapping[str, _FileMarks]


def _try_read_marks(layout: RunLayout, attempt: int, node: str) -> tuple[_NodeMarks, str]:
    """Return the marks of a node's files, and their own file if this user may not read it."""
    try:
        return _read_marks(layout, attempt, node), ""
    except FileSystemError as error:
        if not isinstance(error.__cause__, PermissionError):
            raise
        return {}, layout.log_marks(attempt, node)


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
