"""Reads processes from /proc, and sends signals that cannot hit a later process with the same process id."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Container, Iterable
from dataclasses import dataclass

_PART = 64 * 1024
_ENDING = 0x4 | 0x200 | 0x400
_OF_THE_KERNEL = 0x00200000


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process; `start`, in clock ticks since boot (field 22 of stat), tells it from a later one with its id."""

    pid: int
    parent: int
    session: int
    start: int
    is_alive: bool  # false for a zombie, which only waits to be collected


def find_process(pid: int) -> Process | None:
    """Return the process with this id; None if there is none.

    Source: proc_pid_stat(5). The name in parentheses may itself hold spaces and parentheses.
    """
    try:
        fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return None
    if len(fields) < 20:
        return None
    return Process(
        pid=pid,
        parent=int(fields[1]),
        session=int(fields[3]),
        start=int(fields[19]),
        is_alive=fields[0] not in (b"Z", b"X"),
    )


def is_ending(pid: int) -> bool:
    """Return whether a process is on its way out: it has called exit, or a signal has ended it, perhaps with a dump.

    Its connections may be closed already, long before it can be collected.
    Source: proc_pid_stat(5), and PF_EXITING, PF_DUMPCORE and PF_SIGNALED of linux/sched.h.
    """
    try:
        fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return True
    return len(fields) < 7 or bool(int(fields[6]) & _ENDING)


def is_paused(pid: int) -> bool:
    """Return whether a process stands still because of a signal (SIGSTOP, SIGTTIN ...) or a debugger.

    Source: proc_pid_stat(5), states T and t.
    """
    try:
        return _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[0] in (b"T", b"t")
    except (OSError, IndexError):
        return False


def has_handler(pid: int, number: signal.Signals) -> bool:
    """Return whether a process has a handler for a signal, and so does not end of it; False if there is no such one.

    Source: proc_pid_status(5), SigCgt.
    """
    try:
        found = re.search(rb"^SigCgt:\s*([0-9a-f]+)$", _read(f"/proc/{pid}/status"), re.MULTILINE)
    except OSError:
        return False
    return found is not None and bool(int(found[1], 16) >> (number - 1) & 1)


def has_pending(pid: int, number: signal.Signals) -> bool:
    """Return whether a process that blocks a signal has got it; False if there is no such process.

    Source: proc_pid_status(5), ShdPnd. A blocked signal stays there until it is unblocked or waited for.
    """
    try:
        found = re.search(rb"^ShdPnd:\s*([0-9a-f]+)$", _read(f"/proc/{pid}/status"), re.MULTILINE)
    except OSError:
        return False
    return found is not None and bool(int(found[1], 16) >> (number - 1) & 1)


def all_processes() -> list[Process]:
    """Return all processes of this machine that /proc shows, zombies too."""
    found = (find_process(int(entry)) for entry in os.listdir("/proc") if entry.isdigit())
    return [process for process in found if process]


def living_processes() -> list[Process]:
    """Return all processes that are alive, without zombies."""
    return [process for process in all_processes() if process.is_alive]


def read_environment(pid: int) -> bytes:
    """Return the environment that a process was started with, `NAME=value` between zero bytes.

    It is empty for another user's process, or one that has ended.
    """
    try:
        return _read(f"/proc/{pid}/environ")
    except OSError:
        return b""


def find_environment(pid: int) -> bytes | None:
    """Return the environment as `read_environment` does; None while an exec is about to give the process another one.

    Near its end an exec has closed the descriptors that are not inherited, so that whoever waits for that goes on, and
    the kernel has not yet told where the command line and the environment lie: both read as empty, as those of its own
    threads always do. That takes up to some milliseconds.
    Source: begin_new_exec() and load_elf_binary() of Linux 6.6; PF_KTHREAD of linux/sched.h.
    """
    try:
        environ = _read(f"/proc/{pid}/environ")
        if environ:
            return environ
        if _read(f"/proc/{pid}/cmdline"):
            return _read(f"/proc/{pid}/environ")  # once more: the exec may have ended between the two
        fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return b""
    is_a_program = len(fields) > 6 and not int(fields[6]) & (_OF_THE_KERNEL | _ENDING)
    return None if is_a_program and fields[0] not in (b"Z", b"X") else b""


def read_children(pid: int, thread: int | str) -> list[bytes]:
    """Return the ids of the processes that this thread has started; none where the kernel has no such list."""
    try:
        return _read(f"/proc/{pid}/task/{thread}/children").split()
    except OSError:
        return []


def read_command(process: Process) -> bytes:
    """Return a process's command line, with a zero byte after each word; empty if the process has ended."""
    try:
        return _read(f"/proc/{process.pid}/cmdline")
    except OSError:
        return b""


def has_variable(process: Process, name: str, value: str) -> bool:
    """Return whether the process was started with `name=value`; False for another user's process."""
    return os.fsencode(f"{name}={value}") in read_environment(process.pid).split(b"\0")


def with_descendants(
    roots: Iterable[Process], processes: Iterable[Process], *, stop_at: Container[int] = ()
) -> list[Process]:
    """Return the roots and all their descendants; the search does not go beyond the process ids `stop_at`."""
    children: dict[int, list[Process]] = {}
    for process in processes:
        children.setdefault(process.parent, []).append(process)
    found: dict[int, Process] = {}
    left = list(roots)
    while left:
        process = left.pop()
        if process.pid not in found and process.pid not in stop_at:
            found[process.pid] = process
            left += children.get(process.pid, [])
    return list(found.values())


def send_signal(process: Process, number: signal.Signals) -> None:
    """Signal this process; do nothing if it has ended, even if another process has its id now.

    Raises:
        PermissionError: the process belongs to another user.
    """
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(process.pid)
        try:
            now = find_process(process.pid)  # after the open: the descriptor names one process for good
            if now and now.start == process.start:
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def _read(path: str) -> bytes:
    """Read a whole file without the extra system calls of `open`: every stop reads hundreds of files of /proc."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(descriptor, _PART):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)
