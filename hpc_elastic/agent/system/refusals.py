"""Says in one line that the operating system has refused a process, a thread, a file or memory, and by which limit."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator

TIP = (
    "raise the limit where the job is submitted, for Slurm passes its limits on to the nodes "
    "(PropagateResourceLimits of slurm.conf), or in `setup`"
)
_NO_PROCESS = "can't start new"  # thread; CPython's only RuntimeError for a refusal of the system
_REFUSED = {
    errno.EAGAIN: "another process or thread",
    errno.EMFILE: "another open file",
    errno.ENFILE: "another open file",
    errno.ENOMEM: "more memory",
}
_PROCESSES = ("processes", resource.RLIMIT_NPROC, "-u", 1)
_FILES = ("open files", resource.RLIMIT_NOFILE, "-n", 1)
_MEMORY = ("KiB of addresses", resource.RLIMIT_AS, "-v", 1024)
_LIMITS = {
    errno.EAGAIN: (_PROCESSES, _MEMORY),
    errno.EMFILE: (_FILES,),
    errno.ENFILE: (),
    errno.ENOMEM: (_MEMORY,),
}


def describe_refusal(error: BaseException) -> str | None:
    """Return what the system has refused to this process and the limits that may be why, in one line.

    Returns:
        None if neither the error nor one before it, in whose handling it came up, is such a refusal.
    """
    number = next(filter(None, map(_refusal, _chain(error))), 0)
    if not number:
        return None
    limits = [text for text in map(_describe_limit, _LIMITS[number]) if text]
    if number == errno.EAGAIN:
        limits.append("what its cgroup allows (pids.max)")
    may_be = f"; limits here: {', '.join(limits)}" if limits else ""
    return f"the system refuses this agent {_REFUSED[number]}: {os.strerror(number)}{may_be}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those before it, the first one first."""
    found = [error]
    while (before := found[-1].__cause__ or found[-1].__context__) is not None and before not in found:
        found.append(before)
    return reversed(found)


def _refusal(error: BaseException) -> int:
    """Return the error number of a refusal, 0 of any other error."""
    if isinstance(error, OSError):
        return error.errno if error.errno in _REFUSED else 0
    if isinstance(error, MemoryError):
        return errno.ENOMEM
    return errno.EAGAIN if isinstance(error, RuntimeError) and str(error).startswith(_NO_PROCESS) else 0


def _describe_limit(limit: tuple[str, int, str, int]) -> str | None:
    """Return a limit of this process with the option of bash's ulimit that sets it, None if there is none."""
    what, number, option, unit = limit
    soft, _ = resource.getrlimit(number)
    return None if soft == resource.RLIM_INFINITY else f"{soft // unit} {what} (ulimit {option})"
