"""Formats and reads the lines of a node's log, in which one file has the output of all ranks of the node.

A line is `2026-01-31T14:30:00.123456Z 12 out text`: when the agent read it, the global rank, the stream (`out` or
`err`), and what the rank wrote. `out+` or `err+` says that the rank has not ended its line there: the next line of
this rank and stream goes on where it stops, and if none comes, the rank wrote no newline. Times do not decrease within
a file. Lines whose rank is `-` are the agent's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timezone

AGENT = b"-"
_STREAMS = {b"out": (False, False), b"err": (True, False), b"out+": (False, True), b"err+": (True, True)}


def format_time(time_ns: int) -> bytes:
    """Return Unix nanoseconds as the time at the beginning of a line."""
    moment = datetime.fromtimestamp(time_ns // 10**9, tz=timezone.utc)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ns % 10**9 // 1000:06d}Z".encode()


def format_head(time: bytes, rank: int, *, is_stderr: bool, is_open: bool = False) -> bytes:
    """Return what stands before the text of a line."""
    return b"%s %d %s%s " % (time, rank, b"err" if is_stderr else b"out", b"+" if is_open else b"")


def parse_time(text: bytes) -> int:
    """Return the time at the beginning of a line in Unix nanoseconds.

    Raises:
        ValueError: it is none.
    """
    moment = datetime.fromisoformat(text[:19].decode() + "+00:00")
    return int(moment.timestamp()) * 10**9 + int(text[20:26]) * 1000


def parse_writer(rank: bytes, stream: bytes) -> tuple[int, bool, bool] | None:
    """Return the rank, whether it is standard error, and whether the line goes on; None if no rank wrote it."""
    found = _STREAMS.get(stream)
    return None if found is None or not rank.isdigit() else (int(rank), *found)


def rank_bytes(lines: Iterable[bytes], rank: int, *, is_stderr: bool) -> Iterator[bytes]:
    """Yield what a rank wrote to a stream, as it was, of whole lines of a node's log without their newlines."""
    number, stream = b"%d" % rank, b"err" if is_stderr else b"out"
    opened = stream + b"+"
    for line in lines:
        words = line.split(b" ", 3)
        if len(words) == 4 and words[1] == number:
            if words[2] == stream:
                yield words[3] + b"\n"
            elif words[2] == opened:
                yield words[3]
