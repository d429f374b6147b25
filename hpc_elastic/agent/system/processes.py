"""Finds the processes of a run's workers, and all that these started, on this node.

There are two ways to find them, because each alone misses some. The agent is a subreaper, so whatever a worker
starts stays below the agent, even when it makes a session of its own or clears its environment. And every worker
carries the run, node and attempt in its environment, which its children inherit: that finds them
also when the agent is dead and they belong to init. It also carries its agent: as long as that lives, its workers are
nobody else's, even where two jobs of a run share a node.

The resource trackers of Python's multiprocessing are left alone. They remove shared memory and semaphores whose
owners were killed, and end by themselves when the last owner is gone. If they were killed with the others, what
every killed data loader had in /dev/shm would stay there, until the node is full.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from hpc_elastic.processes import (
    Process,
    find_environment,
    find_process,
    read_children,
    read_command,
    read_environment,
    send_signal,
    with_descendants,
)

RUN_DIR_VARIABLE = "HPC_ELASTIC_RUN_DIR"
NODE_VARIABLE = "HPC_ELASTIC_NODE"
ATTEMPT_VARIABLE = "HPC_ELASTIC_ATTEMPT"
AGENT_VARIABLE = "HPC_ELASTIC_AGENT"
_ATTEMPT = f"{ATTEMPT_VARIABLE}=".encode()
_AGENT = f"{AGENT_VARIABLE}=".encode()
SETTLES_WITHIN_S = 10.0  # a process may get its final environment, by an exec, shortly after its start
EXEC_ENDS_WITHIN_S = 1.0
_LOOK_AGAIN_S = 0.001
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
_RESOURCE_TRACKER = b"from multiprocessing.resource_tracker import main"  # in its command line, behind -c


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """The values that mark a process's environment as that of a worker of this run on this node.

    `agent` is whose workers are sought, as `agent_id` names it; those of another one that lives do not count then. It
    is None where all count.
    """

    run_dir: str
    node: str
    agent: str | None = None

    def match(self, environ: bytes) -> bool:
        """Return whether a `/proc/PID/environ` is that of a worker, or of a process that a worker started."""
        if _ATTEMPT not in environ:  # the quick answer for most of a node's thousands of processes
            return False
        entries = set(environ.split(b"\0"))
        wanted = {
            os.fsencode(f"{RUN_DIR_VARIABLE}={self.run_dir}"),
            os.fsencode(f"{NODE_VARIABLE}={self.node}"),
        }
        is_worker = any(entry.startswith(_ATTEMPT) for entry in entries)
        return is_worker and wanted <= entries and not self._is_anothers(entries)

    def _is_anothers(self, entries: Collection[bytes]) -> bool:
        if self.agent is None:
            return False
        agent = next(
            (os.fsdecode(entry.removeprefix(_AGENT)) for entry in entries if entry.startswith(_AGENT)), self.agent
        )
        return agent != self.agent and _is_living(agent)


def agent_id(pid: int) -> str:
    """Return what the workers of an agent carry of it: its process id and the time of its start, `PID:START`.

    The time, in clock ticks since boot, tells it from a later process with the same id.

    Raises:
        ProcessLookupError: there is no such process.
    """
    process = find_process(pid)
    if process is None:
        raise ProcessLookupError(pid)
    return f"{pid}:{process.start}"


def _is_living(agent: str) -> bool:
    pid, _, start = agent.partition(":")
    process = find_process(int(pid)) if pid.isdecimal() and pid.isascii() else None
    return process is not None and process.is_alive and str(process.start) == start


def become_subreaper() -> None:
    """Make this process a subreaper: orphans below it become its children instead of init's. Linux 3.4."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


class WorkerSearch:
    """A repeatable search for the run's processes on this node.

    Theory of operation. A process that is not below the agent never gets below it: orphans go to an
    ancestor. A process that carries no mark some time after its start does not get one either. So such an unrelated
    process is read once and recognised from then on by its process id and the inode of its entry in /proc. Both are
    listed without opening anything, and a later process with the same id has another inode. A node has
    thousands of unrelated processes, most of them the kernel's own.

    Args:
        marks: what the run's processes carry in their environments.
        ancestor: every process below this one counts too, with marks or without.
    """

    def __init__(self, marks: Marks, *, ancestor: int | None = None) -> None:
        self._marks = marks
        self._ancestor = ancestor
        self._strangers: dict[int, int] = {}  # unrelated processes: inodes by process id; replaced by each search

    def copy(self) -> WorkerSearch:
        """Return another search, for another thread, that already knows the same unrelated processes."""
        other = WorkerSearch(self._marks, ancestor=self._ancestor)
        other._strangers = self._strangers
        return other

    def find(self, *, spared: Collection[int] = (), known: Collection[int] = ()) -> dict[int, Process]:
        """Return the processes of the run that are alive, by process id.

        Args:
            spared: process ids to leave out, with everything below them.
            known: process ids of this process's children whose exit status is collected elsewhere; the exit status
                of its other dead children, which were orphans, is collected here.
        """
        inodes = _list_processes()
        strangers = {pid: inode for pid, inode in self._strangers.items() if inodes.get(pid) == inode}
        read = (find_process(pid) for pid in inodes if pid not in strangers)
        processes = {process.pid: process for process in read if process}
        spared_roots = [processes[pid] for pid in spared if pid in processes]
        excluded = {process.pid for process in with_descendants(spared_roots, processes.values())}
        roots = [processes[self._ancestor]] if self._ancestor in processes else []
        below = {process.pid: process for process in with_descendants(roots, processes.values())}
        young = _ticks_since_boot() - SETTLES_WITHIN_S * TICKS_PER_S
        found = {}
        for pid, process in processes.items():
            environ = b"" if pid in below else find_environment(pid)
            if pid in below or (environ is not None and self._marks.match(environ)):
                found[pid] = process
            elif environ is not None and process.start < young:
                strangers[pid] = inodes[pid]
        self._strangers = strangers
        if self._ancestor == os.getpid():
            _reap_orphans(below.values(), {*spared, *known})
        excluded |= {os.getpid(), *(process.pid for process in roots)}
        return {pid: process for pid, process in found.items() if pid not in excluded and _counts(process)}


def find_workers(marks: Marks, *, exec_ends_within_s: float = EXEC_ENDS_WITHIN_S) -> dict[int, Process]:
    """Return the run's processes on this node that carry its marks and are alive, by process id.

    One that is in the middle of an exec, and so shows no marks, is waited for, `exec_ends_within_s` at most. Of
    a process that is none of the run's only one file is read, because there may be ten thousand.
    """
    found: dict[int, Process] = {}
    left = [pid for pid in _list_processes() if pid != os.getpid() and not _is_told(pid, marks, found)]
    deadline = time.monotonic() + exec_ends_within_s  # from here: the first look at all may take longer than that
    while left:
        time.sleep(_LOOK_AGAIN_S)
        left = [pid for pid in left if not _is_told(pid, marks, found)]
        if time.monotonic() > deadline:
            break
    return found


def _is_told(pid: int, marks: Marks, found: dict[int, Process]) -> bool:
    """Return whether it can be told if a process is a worker, and add it to `found` if it is."""
    environ = find_environment(pid)
    if environ is None or not marks.match(environ):
        return environ is not None
    process = find_process(pid)
    environ = find_environment(pid)  # again: the id may be that of a later process
    if process and _counts(process) and environ is not None and marks.match(environ):
        found[pid] = process
    return environ is not None


def find_below(ancestor: int, marks: Marks, *, spared: Collection[int] = ()) -> dict[int, Process]:
    """Return the run's processes below an ancestor that are alive, by process id; reads nothing of other processes.

    They are those that carry the marks, and whatever these have started. An orphan is below if the ancestor is a
    subreaper, also one that comes to it during the first look. A process that starts or ends meanwhile may be missed.
    All are missed where the kernel has no lists of children (CONFIG_PROC_CHILDREN, which distributions set).

    It looks twice, and not until nobody comes: processes may hand on orphans faster than a busy node lets this one
    look, until whoever waits for this kills them.

    Args:
        ancestor: the process id of the one below which they are.
        marks: what they carry in their environments.
        spared: process ids to leave out, with everything below them.
    """
    found = {}
    looked_at: set[int] = set()
    for _ in range(2):  # the second time: orphans of processes that ended before their lists were read
        left = [(pid, False) for pid in _list_children(ancestor) if pid not in looked_at]
        while left:
            pid, is_ours = left.pop()
            looked_at.add(pid)
            process = None if pid == os.getpid() or pid in spared else find_process(pid)
            if process is None:
                continue
            is_ours = is_ours or marks.match(read_environment(pid))
            left += [(child, is_ours) for child in _list_children(pid)]
            if is_ours and _counts(process):
                found[pid] = process
    return found


def _counts(process: Process) -> bool:
    return process.is_alive and _RESOURCE_TRACKER not in read_command(process)


def _list_children(pid: int) -> list[int]:
    """Return the children of all threads of a process: a child belongs to one thread. Source: proc_pid_task(5)."""
    children: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            children += map(int, read_children(pid, thread))
    return children


def _list_processes() -> dict[int, int]:
    """Return the inodes of the processes' entries in /proc, by process id."""
    with os.scandir("/proc") as entries:
        return {int(entry.name): entry.inode() for entry in entries if entry.name.isdigit()}


def _ticks_since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS_PER_S


def _reap_orphans(processes: Iterable[Process], known: Collection[int]) -> None:
    """Collect the exit status of dead children that this process did not start."""
    me = os.getpid()
    for process in processes:
        if process.parent == me and not process.is_alive and process.pid not in known:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)


def signal_all(processes: Iterable[Process], number: signal.Signals) -> None:
    """Send a signal to each process; skip one that a set-user-id program gave to another user.

    A later search finds a skipped process again.
    """
    for process in processes:
        with contextlib.suppress(PermissionError):
            send_signal(process, number)
