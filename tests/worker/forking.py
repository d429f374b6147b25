"""Plays the agent to a real fork server."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpc_elastic.frames import receive_frame, send_frame
from hpc_elastic.worker.after_fork import IGNORED

LAUNCH = Path(__file__).parents[2] / "hpc_elastic" / "launch.py"
WAIT_S = 60.0
_PR_SET_CHILD_SUBREAPER = 36


class Server:
    """A fork server and the agent's end of its link."""

    def __init__(self, process: subprocess.Popen[bytes], link: socket.socket) -> None:
        self.process = process
        self.link = link
        self.link.settimeout(WAIT_S)
        self.ready = self.receive()

    def receive(self) -> dict[str, Any]:
        received = receive_frame(self.link)
        assert received is not None, "the fork server has closed its link"
        return received[0]

    def order(self, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> dict[str, Any]:
        """Sends an order and returns its answer."""
        send_frame(self.link, dict(message), descriptors)
        return self.receive()

    def fork_worker(
        self,
        kind: str,
        target: str,
        *arguments: str,
        directory: Path,
        environment: Mapping[str, str],
        stdout: Path | None = None,
        stderr: Path | None = None,
        parent: int | None = None,
    ) -> dict[str, Any]:
        """Orders a worker with its output in files, or in /dev/null; returns the answer."""
        message = {
            "do": "worker",
            "parent": os.getpid() if parent is None else parent,
            "kind": kind,
            "target": target,
            "arguments": arguments,
            "environment": dict(environment),
            "directory": str(directory),
            "stdout": "file" if stdout else "null",
            "stderr": "file" if stderr else "null",
        }
        with contextlib.ExitStack() as files:
            opened = []
            for path in (stdout, stderr):
                if path is not None:
                    opened.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC))
                    files.callback(os.close, opened[-1])
            return self.order(message, opened)


@contextlib.contextmanager
def subreaper() -> Iterator[None]:
    """Make this process a subreaper, as an agent is, during the block; end the orphans that it got."""
    prctl = ctypes.CDLL(None).prctl
    before = children()
    assert prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    try:
        yield
    finally:
        for pid in set(children()) - set(before):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@contextlib.contextmanager
def fork_server(
    directory: Path,
    environment: Mapping[str, str],
    *arguments: str,
    python: Sequence[str] = (sys.executable,),
    stdout: int | None = None,
    stderr: int | None = None,
    ignored: Collection[signal.Signals] = (),
    passed: Sequence[int] = (),
) -> Iterator[Server]:
    """Starts a server as an agent does, waits until it is ready, and ends it.

    Args:
        directory: its working directory.
        environment: its whole environment.
        arguments: more of its command line.
        python: its interpreter.
        stdout: a descriptor for its standard output; None: this process's own.
        stderr: the same for its standard error.
        ignored: those of Slurm's signals that are ignored where it starts, whatever `nohup` says of this process.
        passed: descriptors that it inherits.
    """

    def set_dispositions() -> None:
        for number in IGNORED:
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)

    ours, theirs = socket.socketpair()
    command = [*python, str(LAUNCH), "hpc_elastic.worker.fork_server", "--parent", str(os.getpid()), *arguments]
    with ours, theirs, subreaper():
        process = subprocess.Popen(
            command,
            cwd=directory,
            env=dict(environment),
            stdin=theirs.fileno(),
            stdout=stdout,
            stderr=stderr,
            pass_fds=passed,
            start_new_session=True,
            preexec_fn=set_dispositions,
        )
        theirs.close()
        try:
            yield Server(process, ours)
        finally:
            process.kill()
            process.wait()


def collect(pid: int) -> int:
    """Waits for a child, no longer than for anything else; its exit code, negative for a signal."""
    pidfd = os.pidfd_open(pid)
    try:
        if not wait_readable(pidfd):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    finally:
        os.close(pidfd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def wait_readable(descriptor: int, seconds: float = WAIT_S) -> bool:
    """Whether a descriptor becomes readable in time; a pidfd does when its process ends."""
    return bool(select.select([descriptor], [], [], seconds)[0])


def children(pid: int | None = None) -> list[int]:
    """The children of a process, dead ones too; of this one if none is named.

    They are listed anew if one of its threads ends meanwhile, whose children another thread gets.
    """
    threads = Path(f"/proc/{pid or os.getpid()}/task")
    for _ in range(100):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            return [int(word) for thread in threads.iterdir() for word in (thread / "children").read_text().split()]
    raise AssertionError(f"{threads}: threads end all the time, or the process has ended")
