"""Reads what was added to log files since the last read."""

from __future__ import annotations

from hpc_elastic.rundir.layout import RunLayout

_CHUNK_BYTES = 1 << 20


class Tail:
    """A growing file, which may not exist yet, and is read from its beginning again if it was truncated."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._offset = 0
        self._partial = b""

    def read(self) -> bytes:
        """Return the new bytes, at most a MiB; empty when there are none."""
        try:
            with open(self.path, "rb") as file:
                size = file.seek(0, 2)
                if size < self._offset:
                    self._offset = 0
                file.seek(self._offset)
                content = file.read(_CHUNK_BYTES)
        except OSError:
            return b""
        self._offset += len(content)
        return content

    def read_lines(self, *, is_last: bool = False) -> list[str]:
        """Return the new complete lines; an incomplete line is kept until its end comes, or until `is_last`."""
        *lines, self._partial = _split(self._partial, self)
        if is_last and self._partial:
            lines.append(self._partial)
            self._partial = b""
        return [_shown(line) for line in lines]


class RankTail:
    """The two output files of one rank of one attempt."""

    def __init__(self, layout: RunLayout, attempt: int, rank: int) -> None:
        self.attempt = attempt
        self.stdout = Tail(layout.stdout(attempt, rank))
        self.stderr = Tail(layout.stderr(attempt, rank))

    def read_lines(self, *, is_last: bool = False) -> list[str]:
        """Return the new lines of both files; those of standard output come first."""
        return self.stdout.read_lines(is_last=is_last) + self.stderr.read_lines(is_last=is_last)


def _split(partial: bytes, tail: Tail) -> list[bytes]:
    content = partial
    while chunk := tail.read():
        content += chunk
    return content.split(b"\n")


def _shown(line: bytes) -> str:
    """Return what a terminal would still show of a line that a progress bar has overwritten."""
    return line.rstrip(b"\r").rsplit(b"\r", 1)[-1].decode(errors="replace")
