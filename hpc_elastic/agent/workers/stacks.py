"""Asks this node's workers for their stacks, and says of a worker that gives none why; blocking."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping

from hpc_elastic.agent.system.processes import Marks
from hpc_elastic.agent.workers.heartbeats import StackSource
from hpc_elastic.failures.stacks import NO_STACK
from hpc_elastic.processes import read_environment

STACKS_WITHIN_S = 2.0  # a process that runs answers within milliseconds
MOST_BYTES = 1 << 20
_LOOK_EVERY_S = 0.03
_LOOKS_UNCHANGED = 3  # then a stack counts as complete
_STATES = {
    "T": "its process is stopped by a signal (SIGSTOP or SIGTSTP)",
    "t": "its process is stopped by a debugger",
    "D": "its process waits in the kernel (state D), usually for a file system or a device",
    "Z": "its process has ended",
}


def take_stacks(
    sources: Mapping[int, StackSource], marks: Marks, *, within_s: float = STACKS_WITHIN_S
) -> dict[int, str]:
    """Return what each rank writes of its stacks; after `NO_STACK` why it wrote none.

    Args:
        sources: how each rank is asked.
        marks: what the run's processes on this node carry in their environments, so that no other process is signalled.
        within_s: how long to wait for all of them together.
    """
    asked = {rank: source for rank, source in sources.items() if _ask(source, marks)}
    deadline = time.monotonic() + within_s
    sizes: dict[int, int] = {}
    unchanged = 0
    while asked and unchanged < _LOOKS_UNCHANGED and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_S)
        now = {rank: os.fstat(source.stack).st_size for rank, source in asked.items()}
        unchanged = unchanged + 1 if now == sizes and all(now.values()) else 0
        sizes = now
    return {rank: _read(source, is_asked=rank in asked) for rank, source in sources.items()}


def _ask(source: StackSource, marks: Marks) -> bool:
    """Signal a worker that has a handler, and return whether there is one to wait for."""
    if not source.pid or not source.signal:
        return False
    try:
        descriptor = os.pidfd_open(source.pid)
    except OSError:
        return False
    try:
        if not marks.match(read_environment(source.pid)):
            return False
        os.ftruncate(source.stack, 0)
        signal.pidfd_send_signal(descriptor, source.signal)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _read(source: StackSource, *, is_asked: bool) -> str:
    if not is_asked:
        has_ended = "its process has ended" if source.signal else "it is no Python program that beats"
        return f"{NO_STACK}{has_ended}\n"
    content = b""
    with contextlib.suppress(OSError):
        content = os.pread(source.stack, MOST_BYTES, 0)
    if content:
        return content.decode(errors="backslashreplace")
    state, place = _state(source.pid), _kernel_function(source.pid)
    why = _STATES.get(state, f"its process did not answer (state {state or 'unknown'})")
    return f"{NO_STACK}{why}{f', in {place}' if place and state == 'D' else ''}\n"


def _state(pid: int) -> str:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0].decode()
    return ""


def _kernel_function(pid: int) -> str:
    """Return the kernel's function in which a process waits, as far as the kernel says so."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/wchan", encoding="ascii") as file:
        return file.read().strip("0\n")
    return ""
