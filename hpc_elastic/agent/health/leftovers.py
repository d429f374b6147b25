"""Finds ranks of this user's earlier runs that still hold one of the step's GPUs."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable

from hpc_elastic.agent.system.processes import ATTEMPT_VARIABLE, RUN_DIR_VARIABLE
from hpc_elastic.processes import all_processes, read_environment, with_descendants

_RUN_DIR = f"{RUN_DIR_VARIABLE}=".encode()
_ATTEMPT = f"{ATTEMPT_VARIABLE}=".encode()


def find_leftovers(holders: Iterable[tuple[int, int]], *, agent: int) -> str | None:
    """Return which earlier ranks hold GPUs, None if none does.

    The environment of another user's process cannot be read, so such a process is never one of them.

    Args:
        holders: GPU index and process id of each process that uses a GPU of this step.
        agent: this agent's process id: what is below it is not left over.
    """
    own: Collection[int] | None = None
    found = []
    for gpu, pid in holders:
        run_dir = run_of(read_environment(pid))
        if run_dir is None:
            continue
        if own is None:
            own = _below(agent)
        if pid not in own:
            found.append(f"process {pid} of {run_dir} still holds GPU {gpu}")
    return "; ".join(found) or None


def run_of(environ: bytes) -> str | None:
    """Return the run directory of the run whose rank has this `/proc/PID/environ`, None if it is of none."""
    entries = environ.split(b"\0")
    if not any(entry.startswith(_ATTEMPT) for entry in entries):
        return None
    return next((os.fsdecode(entry[len(_RUN_DIR) :]) for entry in entries if entry.startswith(_RUN_DIR)), None)


def _below(agent: int) -> set[int]:
    processes = all_processes()
    roots = [process for process in processes if process.pid == agent]
    return {process.pid for process in with_descendants(roots, processes)}
