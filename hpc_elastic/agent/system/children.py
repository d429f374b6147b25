"""Watches and collects a child process by its pidfd, whether this process forked it or adopted it as an orphan."""

from __future__ import annotations

import os
import signal
import subprocess


class Child:
    """A child of this process, whose exit status is collected once; the process must be a child already."""

    __slots__ = ("pid", "pidfd")

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)

    def kill(self) -> None:
        """Send KILL; a process that has ended but is not collected yet ignores it."""
        signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def has_ended(self) -> bool:
        """Return whether the process has ended; it can still be collected."""
        return os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def collect(self) -> int:
        """Wait for the process to end and return its exit code; negative for a signal, as in torch."""
        status = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED)
        os.close(self.pidfd)
        if status is None:
            raise ChildProcessError(f"process {self.pid} has no exit status")
        return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status


def adopt(pid: int) -> Child:
    """Return the child with this process id; kills the process if it cannot be watched.

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
    """Return the child of a Popen, which no longer collects the exit itself; kills it if it cannot be watched.

    Raises:
        OSError: no file descriptor is left for its pidfd.
    """
    process.returncode = 0  # else Popen would collect the exit itself, when another process is started later
    return adopt(process.pid)
