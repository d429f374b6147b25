"""Ties a process's life to its parent's: a killed agent leaves nothing running."""

from __future__ import annotations

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1  # linux/prctl.h

NOT_CHECKED = 0


def die_with_parent(parent: int) -> None:
    """Asks the kernel to kill this process as soon as its parent ends; survives an exec.

    The kernel means the parent's *thread* that started this process (prctl(2)): an agent starts
    its workers from a thread that lives as long as itself.

    Args:
        parent: the process that must be the parent now; else this process is killed at once, for
            the parent ended before the signal was set. NOT_CHECKED, 0, leaves this out.

    Raises:
        OSError: the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = [ctypes.c_ulong(value) for value in (signal.SIGKILL, 0, 0, 0)]
    if libc.prctl(PR_SET_PDEATHSIG, *arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_PDEATHSIG): {os.strerror(number)}")
    if parent not in (NOT_CHECKED, os.getppid()):
        os.kill(os.getpid(), signal.SIGKILL)
