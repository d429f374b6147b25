"""A child process by its pidfd, whoever forked it: this process, or one below it that left it an orphan."""

from __future__ import annotations

import os
import signal
import subprocess


class Child:
    """A process whose exit this process collects, once; it must be its child already."""

    __slots__ = ("pid", "pidfd")

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)

    def kill(self) -> None:
        """Sends KILL; nothing to a process that has ended."""
        signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def collect(self) -> int:
        """Waits for its end and takes the exit code; negative for a signal, as in torch."""
        status = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED)
        os.close(self.pidfd)
        if status is None:
            raise ChildProcessError(f"process {self.pid} has no exit status")
        return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status


def adopt(pid: int) -> Child:
    """The child with this process id, which is killed if it cannot be watched.

    Raises:
        OSError: no file descriptor is left for its pidfd.
    """
    try:
        return Child(pid)
    except OSError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def adopt_process(process: subprocess.Popen[bytes]) -> Child:
    """The same for a process that was started here; the Popen forgets it.

    Raises:
        OSError: no file descriptor is left for its pidfd.
    """
    process.returncode = 0  # else it would collect the exit itself, at some later start of another process
    return adopt(process.pid)
