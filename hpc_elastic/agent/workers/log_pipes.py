"""Collects the output of a node's ranks through pipes, where the agent has to be the only writer of the logs.

Theory of operation. That is so with `logs.per: node`, where all ranks share a file, and with `logs.max_size`, where a
log is cut while its rank writes. One thread reads a bounded chunk of each pipe that has output, in turn, so that a
rank that floods its pipe holds up no other: a full pipe makes that rank wait, and memory does not grow. The lines of a
turn go to the node's log in one write, each with its rank, its stream and its time; an incomplete line is held back
for `HELD_BACK_S` at most, and then written as a line that goes on. After a turn with little output the thread rests
for `REST_S`, so that a rank that prints word by word costs a write each `REST_S` and not each word. A disk that
refuses lines costs the lines. A disk that hangs makes the ranks wait when their pipes are full, as it would with
files.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import threading
import time
from collections.abc import Callable, Sequence

from hpc_elastic.agent.workers.log_writer import LogWriter
from hpc_elastic.agent.workers.spawn import RankOutput, WorkerOrder
from hpc_elastic.agent.workers.tee import TeedLines, TeeSink, duplicates, tee_prefix
from hpc_elastic.plan.launch_plan import LogsPlan
from hpc_elastic.plan.std_streams import Std
from hpc_elastic.rundir.error_file import STDERR_TAIL_LIMIT
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.node_log import AGENT, format_head, format_time
from hpc_elastic.rundir.store import make_directory

CHUNK_BYTES = 256 * 1024
PIPE_BYTES = 1024 * 1024
LONGEST_LINE = 64 * 1024
MOST_IN_MEMORY = 1024 * 1024
HELD_BACK_S = 1.0
REST_S = 0.05
LITTLE_BYTES = 64 * 1024
CLOSED_WITHIN_S = 10.0  # a disk that hangs must not hold up a stop; the thread goes on by itself
TAIL_WITHIN_S = 1.0


class LogPipes:
    """The pipes of an attempt's workers on this node, and the thread that reads them.

    Args:
        logs: what goes where.
        layout: the file names.
        attempt: the attempt's number.
        node: this node's name.
        workers: how many workers share the node's log.
        say: takes a line for the agent's log; called in the thread.
    """

    def __init__(
        self, logs: LogsPlan, layout: RunLayout, *, attempt: int, node: str, workers: int, say: Callable[[str], None]
    ) -> None:
        self._logs = logs
        self._layout = layout
        self._node = node
        self._say = say
        self._node_log: _NodeLog | None = None
        if logs.per == "node":
            path, most = layout.node_log(attempt, node), logs.max_size_bytes
            writer = LogWriter(path, layout.earlier(path), None if most is None else most * workers)
            self._node_log = _NodeLog(writer)
        out, err = duplicates(logs, layout, attempt=attempt, node=node)
        self._sinks = {Std.OUT: TeeSink("stdout", out), Std.ERR: TeeSink("stderr", err)}
        self._streams: dict[tuple[int, Std], _Stream] = {}
        self._by_descriptor: dict[int, _Stream] = {}
        self._has_complained = False
        self._is_over = False
        self._hurry = threading.Event()
        self._epoll = select.epoll()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._epoll.register(self._wake_read, select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, name="log pipes", daemon=True)
        self._thread.start()

    def output(self, order: WorkerOrder) -> RankOutput:
        """Return the way of one worker's output into the logs."""
        return _Output(self, order)

    def open(self, order: WorkerOrder, stream: Std) -> int:
        """Make a pipe for a worker's stream and return its end for writing, which the caller closes.

        Raises:
            OSError: there are no descriptors left, or the rank's folder cannot be made.
        """
        found = self._streams.get((order.rank, stream))
        if found is None:
            found = self._streams[order.rank, stream] = self._make(order, stream)
        reading, writing = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(reading, False)
        with contextlib.suppress(OSError):  # a user has 64 MiB of pipes without privileges (pipe(7))
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        with found.lock:
            found.descriptors.append(reading)
        self._by_descriptor[reading] = found
        self._epoll.register(reading, select.EPOLLIN)
        return writing

    def stderr_tail(self, rank: int) -> str:
        """Return the end of what a rank has written to standard error, what is still in its pipe included."""
        stream = self._streams.get((rank, Std.ERR))
        if stream is None:
            return ""
        deadline = time.monotonic() + TAIL_WITHIN_S
        while not stream.is_drained() and time.monotonic() < deadline and self._thread.is_alive():
            self._hurry.set()
            time.sleep(0.002)
        return stream.tail_text()

    def close(self) -> None:
        """Write down what is left in the pipes, and end the thread; no worker may run any more."""
        self._is_over = True
        self._hurry.set()
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"x")
        self._thread.join(CLOSED_WITHIN_S)

    def _make(self, order: WorkerOrder, stream: Std) -> _Stream:
        tee = None
        if stream & order.destinations.teed:
            self._sinks[stream].open()
            tee = TeedLines(tee_prefix(self._logs, order, self._node), self._sinks[stream])
        writer = None
        if self._node_log is None:
            path = self._layout.stdout if stream is Std.OUT else self._layout.stderr
            log = path(order.attempt, order.rank)
            make_directory(os.path.dirname(log))
            writer = LogWriter(log, self._layout.earlier(log), self._logs.max_size_bytes)
            writer.open()
        return _Stream(order.rank, is_stderr=stream is Std.ERR, writer=writer, node_log=self._node_log, tee=tee)

    def _run(self) -> None:
        while not self._is_over:
            is_holding = any(stream.is_holding() for stream in list(self._streams.values()))
            count = self._turn(HELD_BACK_S if is_holding else -1)
            if count < LITTLE_BYTES and not self._is_over:
                self._hurry.wait(REST_S)
            self._hurry.clear()
        deadline = time.monotonic() + CLOSED_WITHIN_S
        while self._turn(0) and time.monotonic() < deadline:
            pass
        self._finish()

    def _turn(self, timeout_s: float) -> int:
        """Read a chunk of each pipe with output and write down the lines; return how many bytes there were."""
        ready = self._epoll.poll(timeout_s)
        now_ns, count = time.time_ns(), 0
        if self._node_log is not None:
            self._node_log.begin(now_ns)
        for descriptor, _ in ready:
            if descriptor != self._wake_read:
                count += self._read(descriptor)
        for stream in list(self._streams.values()):
            stream.flush_old()
        if self._node_log is not None:
            self._node_log.flush()
        self._complain()
        return count

    def _read(self, descriptor: int) -> int:
        stream = self._by_descriptor[descriptor]
        chunk = stream.read(descriptor)
        if chunk is None:
            return 0
        if not chunk:
            self._epoll.unregister(descriptor)
            del self._by_descriptor[descriptor]
            stream.close(descriptor)
            return 0
        stream.take(chunk)
        return len(chunk)

    def _complain(self) -> None:
        if self._has_complained:
            return
        writers = [self._node_log.writer] if self._node_log is not None else []
        writers += [stream.writer for stream in list(self._streams.values()) if stream.writer is not None]
        for writer in writers:
            if writer.last_error is not None:
                self._has_complained = True
                why = writer.last_error.strerror or writer.last_error
                self._say(f"output of workers is lost: {writer.path}: {why}; the workers go on")
                return

    def _finish(self) -> None:
        if self._node_log is not None:
            self._node_log.begin(time.time_ns())
        for descriptor, stream in list(self._by_descriptor.items()):
            stream.close(descriptor)
        self._by_descriptor.clear()
        for stream in self._streams.values():
            stream.finish()
        if self._node_log is not None:
            self._node_log.flush()
            self._node_log.writer.close()
        for sink in self._sinks.values():
            sink.close()
        self._epoll.close()
        os.close(self._wake_read)


class _Output:
    """One worker's way into the logs."""

    def __init__(self, pipes: LogPipes, order: WorkerOrder) -> None:
        self._pipes = pipes
        self._order = order

    def open(self, stream: Std) -> int:
        """Implement `RankOutput`."""
        return self._pipes.open(self._order, stream)

    def stderr_tail(self) -> str:
        """Implement `RankOutput`."""
        return self._pipes.stderr_tail(self._order.rank)


class _NodeLog:
    """The node's log, with the lines of a turn that are not written yet."""

    def __init__(self, writer: LogWriter) -> None:
        self.writer = writer
        self._buffer = bytearray()
        self._time_ns = 0
        self._time = b""
        writer.open()

    def begin(self, now_ns: int) -> None:
        """Begin a turn: the time of its lines, which never decreases."""
        self._time_ns = max(self._time_ns, now_ns)
        self._time = format_time(self._time_ns)

    def put(self, rank: int, *, is_stderr: bool, content: bytes, is_open: bool = False) -> None:
        """Add whole lines, with their newlines, or with `is_open` a part of a line without one."""
        head = format_head(self._time, rank, is_stderr=is_stderr, is_open=is_open)
        body = content if is_open else content[:-1]
        self._buffer += head + (body if is_open else body.replace(b"\n", b"\n" + head)) + b"\n"
        if len(self._buffer) > MOST_IN_MEMORY:
            self.flush()

    def flush(self) -> None:
        """Write down what was put."""
        if not self._buffer:
            return
        content = bytes(self._buffer)
        self._buffer.clear()
        lost, error = self.writer.lost_lines, self.writer.last_error
        if lost and error is not None:
            note = f"{lost} lines were lost: {error.strerror or error}\n".encode()
            content = b"%s %s %s" % (self._time, AGENT, note) + content
        is_written = self.writer.append(content)
        if lost:
            self.writer.lost_lines = 0 if is_written else self.writer.lost_lines - 1  # the note is none of a rank's


class _Stream:
    """One stream of one rank: what of it was not written yet, and the end of it."""

    def __init__(
        self, rank: int, *, is_stderr: bool, writer: LogWriter | None, node_log: _NodeLog | None, tee: TeedLines | None
    ) -> None:
        self._rank = rank
        self._is_stderr = is_stderr
        self.writer = writer
        self._node_log = node_log
        self._tee = tee
        self._rest = b""
        self._rest_since = 0.0
        self._tail = b""
        self.lock = threading.Lock()  # what was read is in the tail, and the pipe's end is known, when it is free
        self.descriptors: list[int] = []

    def read(self, descriptor: int) -> bytes | None:
        """Read from a pipe: None if there is nothing now, empty at its end."""
        with self.lock:
            try:
                chunk = os.read(descriptor, CHUNK_BYTES)
            except BlockingIOError:
                return None
            except OSError:
                return b""
            if self._is_stderr and chunk:
                self._tail = (self._tail + chunk)[-STDERR_TAIL_LIMIT - 1 :]
            return chunk

    def close(self, descriptor: int) -> None:
        """Close a pipe that has ended."""
        with self.lock:
            if descriptor in self.descriptors:
                self.descriptors.remove(descriptor)
                os.close(descriptor)

    def is_drained(self) -> bool:
        """Return whether all that was written so far was read."""
        with self.lock:
            poll = select.poll()
            for descriptor in self.descriptors:
                poll.register(descriptor, select.POLLIN)
            return not any(event & select.POLLIN for _, event in poll.poll(0))

    def tail_text(self) -> str:
        """Return the end of the stream, from the start of a line on."""
        with self.lock:
            content = self._tail
        if len(content) > STDERR_TAIL_LIMIT:
            content = content[1:] if content[:1] == b"\n" else content.partition(b"\n")[2] or content
        return content.decode("utf-8", "backslashreplace")

    def take(self, chunk: bytes) -> None:
        """Write down a chunk, but for an incomplete line at its end in a node's log."""
        if self._tee is not None:
            self._tee.take(chunk)
        if self.writer is not None:
            self.writer.append(chunk)
        if self._node_log is None:
            return
        content = self._rest + chunk if self._rest else chunk
        cut = content.rfind(b"\n") + 1
        if cut:
            self._node_log.put(self._rank, is_stderr=self._is_stderr, content=content[:cut])
        if cut or not self._rest:
            self._rest_since = time.monotonic()
        self._rest = content[cut:]
        if len(self._rest) > LONGEST_LINE:
            self._put_rest()

    def is_holding(self) -> bool:
        """Return whether there is an incomplete line that was not written."""
        return bool(self._rest)

    def flush_old(self) -> None:
        """Write down an incomplete line that was held back for long."""
        if self._rest and time.monotonic() - self._rest_since > HELD_BACK_S:
            self._put_rest()

    def finish(self) -> None:
        """Write down all that is left."""
        if self._rest:
            self._put_rest()
        if self._tee is not None:
            self._tee.finish()
        if self.writer is not None:
            self.writer.close()

    def _put_rest(self) -> None:
        if self._node_log is not None:
            self._node_log.put(self._rank, is_stderr=self._is_stderr, content=self._rest, is_open=True)
        self._rest = b""


def start_pipes(
    logs: LogsPlan, layout: RunLayout, orders: Sequence[WorkerOrder], *, node: str, say: Callable[[str], None]
) -> LogPipes | None:
    """Start to collect the output of an attempt's workers; None if they write to files of their own."""
    if not any(order.destinations.redirected for order in orders):
        return None
    if logs.per == "rank" and logs.max_size_bytes is None:
        return None
    return LogPipes(logs, layout, attempt=orders[0].attempt, node=node, workers=len(orders), say=say)
