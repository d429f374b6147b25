"""Finds what a run's workers started on this node.

Two nets, because each has holes. The agent is a subreaper, so whatever a worker starts stays below
the agent, even when it makes a session of its own or clears its environment. And every worker
carries the run, node and attempt in its environment, which its children inherit: that finds them
also when the agent is dead and they belong to init.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from hpc_elastic.processes import Process, all_processes, read_environment, send_signal, with_descendants

RUN_DIR_VARIABLE = "HPC_ELASTIC_RUN_DIR"
NODE_VARIABLE = "HPC_ELASTIC_NODE"
ATTEMPT_VARIABLE = "HPC_ELASTIC_ATTEMPT"
_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What a worker of this run on this node carries in its environment."""

    run_dir: str
    node: str

    def match(self, environ: bytes) -> bool:
        """Whether `/proc/PID/environ` is of a worker, or of something that a worker started."""
        entries = set(environ.split(b"\0"))
        wanted = {
            os.fsencode(f"{RUN_DIR_VARIABLE}={self.run_dir}"),
            os.fsencode(f"{NODE_VARIABLE}={self.node}"),
        }
        is_worker = any(entry.startswith(ATTEMPT_VARIABLE.encode() + b"=") for entry in entries)
        return is_worker and wanted <= entries


def become_subreaper() -> None:
    """Orphans below this process become its children instead of init's. Linux 3.4."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def find_workers(marks: Marks, *, ancestor: int | None = None, spared: Collection[int] = ()) -> dict[int, Process]:
    """The processes of the run on this node that are alive, by process id.

    Args:
        marks: what they carry.
        ancestor: everything below this process counts too, marked or not.
        spared: processes that do not count, with everything below them.
    """
    processes = all_processes()
    by_pid = {process.pid: process for process in processes}
    spared_roots = [by_pid[pid] for pid in spared if pid in by_pid]
    excluded = {process.pid for process in with_descendants(spared_roots, processes)} | {os.getpid(), ancestor}
    found = [process for process in processes if marks.match(read_environment(process))]
    if ancestor in by_pid:
        found += with_descendants([by_pid[ancestor]], processes, stop_at=spared)
    return {process.pid: process for process in found if process.is_alive and process.pid not in excluded}


def reap_orphans(known: Collection[int]) -> None:
    """Takes the exit status of dead children that nobody here started; they were orphans."""
    me = os.getpid()
    for process in all_processes():
        if process.parent == me and not process.is_alive and process.pid not in known:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)


def signal_all(processes: Iterable[Process], number: signal.Signals) -> None:
    """Signals each of them; what a set-user-id program made another user's is passed over, and found again."""
    for process in processes:
        with contextlib.suppress(PermissionError):
            send_signal(process, number)
