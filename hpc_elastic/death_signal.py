"""Ties a process's life to its agent's, so that a killed or frozen agent leaves none and starts no worker late."""

from __future__ import annotations

import ctypes
import os
import signal

from hpc_elastic.deadline import Deadline

PR_SET_PDEATHSIG = 1  # linux/prctl.h

NOT_CHECKED = 0


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process as soon as its parent ends; an exec does not undo this.

    The kernel means the parent's *thread* that started this process (prctl(2)): an agent starts
    its workers from a thread that lives as long as itself.

    Args:
        parent: the process that must be the parent now; else this process is killed at once, because
            the parent ended before the signal was set. NOT_CHECKED, 0, leaves this check out.

    Raises:
        OSError: the kernel refuses.
    """
    _ask_for(signal.SIGKILL)
    if parent not in (NOT_CHECKED, os.getppid()):
        os.kill(os.getpid(), signal.SIGKILL)


def go_on_without_parent() -> None:
    """Ask the kernel to let this process go on, if it is stopped, as soon as its parent ends.

    As in `die_with_parent` the parent is the thread that started this process.

    Raises:
        OSError: the kernel refuses.
    """
    _ask_for(signal.SIGCONT)


def _ask_for(number: signal.Signals) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = [ctypes.c_ulong(value) for value in (number, 0, 0, 0)]
    if libc.prctl(PR_SET_PDEATHSIG, *arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl(PR_SET_PDEATHSIG): {os.strerror(error)}")


def die_if_late(descriptor: int | None) -> None:
    """Kill this process if the node's workers may not run any more; otherwise return.

    The agent, or this process, may have been paused since the agent's order. From now on the process has the
    marks by which the guard finds workers, so a process that becomes late after this check is the guard's to kill.

    Args:
        descriptor: of the deadline, closed here; None: there is none.
    """
    if descriptor is None:
        return
    deadline = Deadline(descriptor)
    if deadline.has_passed:
        os.kill(os.getpid(), signal.SIGKILL)
    deadline.close()
