"""Reads what was added to log files since the last read."""

from __future__ import annotations

from collections.abc import Iterator

from hpc_elastic.observe.growing_file import GrowingFile
from hpc_elastic.observe.rank_output import CHUNK_BYTES, OutputReader, open_output
from hpc_elastic.rundir.layout import RunLayout

LONGEST_LINE = 1 << 20  # a longer one is shown in pieces, so that memory does not grow with it
_MOST_UNFINISHED = 4096  # of a line without an end; more fits in no line of a terminal


class Tail:
    """A growing file or stream of a rank, which may not exist yet and may be cut while it is read.

    Args:
        source: the path of a file, or a reader of a rank's stream.
    """

    def __init__(self, source: str | OutputReader) -> None:
        self._source = _File(source) if isinstance(source, str) else source
        self._chunks: Iterator[bytes] | None = None
        self._partial = bytearray()

    @property
    def forbidden(self) -> str:
        """The file, if the last read found that this user may not read it; else empty."""
        return self._source.forbidden

    def read(self) -> bytes:
        """Return the next new bytes, a MiB or so; empty when there are none."""
        if self._chunks is None:
            self._chunks = self._source.chunks()
        chunk = next(self._chunks, b"")
        if not chunk:
            self._chunks = None
        return chunk

    def read_lines(self, *, is_last: bool = False) -> list[str]:
        """Return the new complete lines; an incomplete line is kept until its end comes, or until `is_last`."""
        return list(self.lines(is_last=is_last))

    def lines(self, *, is_last: bool = False) -> Iterator[str]:
        """Yield what `read_lines` returns, and read on meanwhile: there may be gigabytes."""
        while chunk := self.read():
            first, *more = chunk.split(b"\n")
            self._extend(first)
            if more or len(self._partial) > LONGEST_LINE:
                complete = [bytes(self._partial), *more[:-1]]
                self._partial = bytearray(more[-1] if more else b"")
                yield from map(_shown, complete)
        if is_last and self._partial:
            last = bytes(self._partial)
            self._partial.clear()
            yield _shown(last)

    @property
    def unfinished(self) -> str:
        """What a terminal would show of the line that has no end yet: the present state of a progress bar, say."""
        return _shown(bytes(self._partial[:_MOST_UNFINISHED]))

    def _extend(self, more: bytes) -> None:
        """Add to the incomplete line, and drop what a progress bar has overwritten: it may go on for days."""
        shown = more.rstrip(b"\r")
        begin = shown.rfind(b"\r") + 1
        if begin or (shown and self._partial.endswith(b"\r")):
            self._partial.clear()
        self._partial += more[begin:]


class _File:
    def __init__(self, path: str) -> None:
        self._file = GrowingFile(path)

    def chunks(self) -> Iterator[bytes]:
        return (chunk.content for chunk in self._file.chunks(CHUNK_BYTES))

    @property
    def forbidden(self) -> str:
        return self._file.forbidden


class RankTail:
    """The two streams of one rank of one attempt."""

    def __init__(self, layout: RunLayout, attempt: int, rank: int) -> None:
        self.attempt = attempt
        self.stdout = Tail(open_output(layout, attempt, rank, is_stderr=False))
        self.stderr = Tail(open_output(layout, attempt, rank, is_stderr=True))

    def lines(self, *, is_last: bool = False) -> Iterator[str]:
        """Yield the new lines of both files; those of standard output come first."""
        yield from self.stdout.lines(is_last=is_last)
        yield from self.stderr.lines(is_last=is_last)

    def unfinished(self) -> list[str]:
        """Return what there is of lines without an end, as far as `lines` has come."""
        return [line for line in (self.stdout.unfinished, self.stderr.unfinished) if line]


def _shown(line: bytes) -> str:
    """Return what a terminal would still show of a line that a progress bar has overwritten."""
    return line.rstrip(b"\r").rsplit(b"\r", 1)[-1].decode(errors="replace")
