"""Child processes that cannot outlive their parent, and the words they say when they are ready."""

from __future__ import annotations

import ctypes
import selectors
import signal
import subprocess

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class SandboxError(RuntimeError):
    """The sandbox cannot do what it was asked; the message says why."""


def die_with_parent() -> None:
    """Makes the kernel kill the calling process when its parent dies; for `preexec_fn`."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def read_word(process: subprocess.Popen[str], expected: str, *, within_s: float = 30.0) -> None:
    """Waits until the process says the word on a line of its output.

    Raises:
        SandboxError: it said something else, ended, or said nothing in time.
    """
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        line = process.stdout.readline() if selector.select(within_s) else f"(nothing for {within_s:g} s)"
    if line.rstrip("\n") != expected:
        raise SandboxError(f"expected {expected!r} of {process.args!r}, found {line.strip() or '(end of output)'!r}")


def only_child(pid: int) -> int:
    """The process id of the one child of a process.

    Raises:
        SandboxError: it has none, or several.
    """
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            children = file.read().split()
    except OSError as error:
        raise SandboxError(f"process {pid} is gone") from error
    if len(children) != 1:
        raise SandboxError(f"process {pid} has {len(children)} children, expected one")
    return int(children[0])
