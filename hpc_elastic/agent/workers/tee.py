"""Repeats the output of some ranks in the agent's log, line by line, with a prefix that names the rank.

Theory of operation. Workers append to files of their own and know nothing of the agent, which follows
those files in one thread. Only that thread writes lines of workers, each with its newline in one write, so no
line is ever split by another; an incomplete line is held back until its newline arrives. What a worker wrote before
it was killed is in its file, and is read when the tee is closed. A turn reads a bounded part of each file
and no line is kept beyond `LONGEST_LINE`, so memory does not grow with the output. Where workers write to pipes
(`log_pipes`), there is no tee: the thread that reads the pipes repeats their lines in the same form.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

from hpc_elastic.agent.workers.spawn import WorkerOrder
from hpc_elastic.plan.launch_plan import LogsPlan
from hpc_elastic.plan.log_prefix import fill_prefix
from hpc_elastic.plan.std_streams import Std
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.store import FILE_MODE, make_directory, write_all

SHORTEST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 1.0
CHUNK_BYTES = 64 * 1024
BYTES_A_TURN = 64 * CHUNK_BYTES  # read of one file before the next file has its turn
LONGEST_LINE = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TeedFile:
    """A file to follow: one stream of a worker, and the prefix of each of its lines."""

    path: str
    prefix: str
    stream: Std = Std.OUT


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicates:
    """A file that also gets the teed lines of a stream that contain one of these texts."""

    path: str
    filters: tuple[str, ...]


class Tee:
    """Follows files that workers append to, in a thread of its own.

    It reads again after a short pause while there is new output, and once a second while there is none.

    Args:
        files: the files to follow. Standard error goes to the agent's own standard error, as in torch.
        out: a file that also gets the lines of standard output that contain certain texts.
        err: a file that also gets the lines of standard error that contain certain texts.
    """

    def __init__(
        self,
        files: Sequence[TeedFile],
        *,
        out: Duplicates | None = None,
        err: Duplicates | None = None,
    ) -> None:
        sinks = {Std.OUT: TeeSink("stdout", out), Std.ERR: TeeSink("stderr", err)}
        self._sinks = list(sinks.values())
        self._files = [_Followed(file.path, file.prefix, sinks[file.stream]) for file in files]
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tee", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Repeat the rest of the output and end the thread; no process may write to the files any more."""
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        pause = SHORTEST_PAUSE_S
        for sink in self._sinks:
            sink.open()
        while not self._is_over.wait(pause):
            came = [file.copy(BYTES_A_TURN) for file in self._files]
            pause = SHORTEST_PAUSE_S if any(came) else min(LONGEST_PAUSE_S, pause * 2)
        for file in self._files:
            file.finish()
        for sink in self._sinks:
            sink.close()


def start_tee(logs: LogsPlan, layout: RunLayout, orders: Sequence[WorkerOrder], *, node: str) -> Tee | None:
    """Start the tee of an attempt's workers on this node; None if nothing is teed, or what is goes through pipes."""
    files = [file for order in orders if order.output is None for file in _teed_files(logs, layout, order, node)]
    if not files:
        return None
    out, err = duplicates(logs, layout, attempt=orders[0].attempt, node=node)
    has_out, has_err = (any(file.stream is stream for file in files) for stream in (Std.OUT, Std.ERR))
    return Tee(files, out=out if has_out else None, err=err if has_err else None)


def duplicates(
    logs: LogsPlan, layout: RunLayout, *, attempt: int, node: str
) -> tuple[Duplicates | None, Duplicates | None]:
    """Return the files that also get some teed lines of standard output and of standard error."""
    out = Duplicates(path=layout.filtered_stdout(attempt, node), filters=logs.duplicate_stdout_filters)
    err = Duplicates(path=layout.filtered_stderr(attempt, node), filters=logs.duplicate_stderr_filters)
    return out if out.filters else None, err if err.filters else None


def tee_prefix(logs: LogsPlan, order: WorkerOrder, node: str) -> str:
    """Return what stands before each repeated line of a worker."""
    return fill_prefix(
        logs.prefix,
        {
            "role_name": order.environment.get("ROLE_NAME", ""),
            "local_rank": order.local_rank,
            "rank": order.rank,
            "node": node,
            "attempt": order.attempt,
        },
    )


def _teed_files(logs: LogsPlan, layout: RunLayout, order: WorkerOrder, node: str) -> list[TeedFile]:
    prefix, teed = tee_prefix(logs, order, node), order.destinations.teed
    paths = {Std.OUT: layout.stdout(order.attempt, order.rank), Std.ERR: layout.stderr(order.attempt, order.rank)}
    return [TeedFile(path=path, prefix=prefix, stream=stream) for stream, path in paths.items() if stream & teed]


class TeeSink:
    """One of the agent's own streams, and the file for the lines that match its filters."""

    def __init__(self, name: str, duplicates: Duplicates | None) -> None:
        self._name = name
        self._duplicates = duplicates
        self._needles = [text.encode() for text in duplicates.filters] if duplicates else []
        self._descriptor: int | None = None

    def open(self) -> None:
        """Create the file for matches, so that an empty file says that there was no match."""
        if self._duplicates is None or self._descriptor is not None:
            return
        with contextlib.suppress(OSError):  # a disk that is full must not end the tee
            make_directory(os.path.dirname(self._duplicates.path))
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(self._duplicates.path, flags, FILE_MODE)

    def write(self, prefix: bytes, lines: list[bytes]) -> None:
        """Print the lines, each with the prefix and a newline; copy those that match to the file for matches."""
        stream: BinaryIO = getattr(sys, self._name).buffer
        left = memoryview(b"".join(prefix + line + b"\n" for line in lines))
        with contextlib.suppress(OSError):
            while left and (written := stream.write(left)):  # without a buffer, a part of it may be written
                left = left[written:]
            stream.flush()
        if self._descriptor is not None:
            matches = [line for line in lines if any(needle in line for needle in self._needles)]
            with contextlib.suppress(OSError):
                write_all(self._descriptor, b"".join(prefix + line + b"\n" for line in matches))

    def close(self) -> None:
        """Close the file for matches."""
        if self._descriptor is not None:
            os.close(self._descriptor)


class TeedLines:
    """Passes the output of one stream of a worker on to a sink, in complete lines."""

    def __init__(self, prefix: str, sink: TeeSink) -> None:
        self._prefix = prefix.encode()
        self._sink = sink
        self._rest = b""

    def take(self, chunk: bytes) -> None:
        """Print the lines that a chunk completes."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            lines.append(self._rest)
            self._rest = b""
        if lines:
            self._sink.write(self._prefix, lines)

    def finish(self) -> None:
        """Print a last line without a newline."""
        if self._rest:
            self._sink.write(self._prefix, [self._rest])
            self._rest = b""


class _Followed:
    """A file that is read from its beginning on as it grows; it may not exist yet."""

    def __init__(self, path: str, prefix: str, sink: TeeSink) -> None:
        self.path = path
        self._lines = TeedLines(prefix, sink)
        self._offset = 0

    def copy(self, most: int) -> bool:
        """Print the next complete lines after a read of at most `most` bytes; return whether there was new output."""
        start = self._offset
        with contextlib.suppress(OSError):
            if os.stat(self.path).st_size <= start:  # the writer is on this machine, so its size is current
                return False
            with open(self.path, "rb", buffering=0) as file:
                file.seek(start)
                while chunk := file.read(min(CHUNK_BYTES, start + most - self._offset)):
                    self._offset += len(chunk)
                    self._lines.take(chunk)
        return self._offset > start

    def catch_up(self) -> None:
        """Print all complete lines that the file has by now."""
        with contextlib.suppress(OSError):
            self.copy(os.stat(self.path).st_size - self._offset)  # a bound: a worker may still write

    def finish(self) -> None:
        """Print all that the file has by now, including a last line without a newline."""
        self.catch_up()
        self._lines.finish()
