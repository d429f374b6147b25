"""The checks of a node that need no other node: its Python, folders, limits, GPUs and what earlier runs left."""

from __future__ import annotations

import json
import os
import platform
import resource
import socket
import sys
from collections.abc import Mapping

from hpc_elastic.agent.health.leftovers import run_of
from hpc_elastic.agent.node.cpus import cores_of_this_process
from hpc_elastic.agent.node.gpus import count_gpus
from hpc_elastic.cgroup_memory import NO_LIMIT, read_room
from hpc_elastic.codec import from_json
from hpc_elastic.doctor.probes import folder
from hpc_elastic.doctor.probes.answers import (
    FolderSeen,
    GpusSeen,
    Leftover,
    LeftoversSeen,
    LimitsSeen,
    ProbeRequest,
    PythonSeen,
)
from hpc_elastic.doctor.probes.bounded import run_program
from hpc_elastic.plan.references import expand_references
from hpc_elastic.processes import living_processes, read_environment
from hpc_elastic.scheduler.slurm.step import find_job_number

_FOLDER_LIMIT_S = 15.0
_SCRATCH_LIMIT_S = 8.0
_MOST_LEFTOVERS = 20


def see_python() -> PythonSeen:
    """Return the Python that runs this, which is the agents'."""
    umask = os.umask(0o077)
    os.umask(umask)
    return PythonSeen(
        version=platform.python_version(),
        executable=sys.executable,
        prefix=sys.prefix,
        python_path=os.environ.get("PYTHONPATH"),
        search_path=tuple(sys.path),
        host=socket.gethostname(),
        umask=umask,
    )


def see_folder(path: str, node: str, within_s: float = _FOLDER_LIMIT_S) -> FolderSeen:
    """Return what works in a folder, tried by a process of its own.

    Raises:
        LateError: it does not answer.
    """
    name = f".hpc-elastic-doctor-{node}-{os.getpid()}"
    returncode, said = run_program([sys.executable, "-I", "-S", folder.__file__, path, name], within_s)
    if returncode != 0:
        return FolderSeen(path=path, problems={"start": f"the program that tries it ended with {returncode}"})
    return from_json(FolderSeen, {"path": path, **json.loads(said)})


def see_scratch(request: ProbeRequest, node: str, environ: Mapping[str, str]) -> FolderSeen:
    """Return what works in local scratch, which the site's file names: else TMPDIR, else /tmp."""
    path = expand_references(request.scratch, environ) if request.scratch else environ.get("TMPDIR") or "/tmp"
    return see_folder(path, node, _SCRATCH_LIMIT_S)


def see_limits() -> LimitsSeen:
    """Return what this step may use of its node."""
    return LimitsSeen(
        memory=read_room().total,
        cpus=cores_of_this_process(),
        open_files=_limit(resource.RLIMIT_NOFILE),
        locked_memory=_limit(resource.RLIMIT_MEMLOCK),
        shared_memory=_size("/dev/shm"),
        has_fabric=os.path.isdir("/sys/class/infiniband") and bool(os.listdir("/sys/class/infiniband")),
    )


def see_gpus(environ: Mapping[str, str]) -> GpusSeen:
    """Return how many GPUs a process of this step sees."""
    seen = count_gpus(environ).seen
    return GpusSeen(visible=None if seen is None else len(seen))


def see_leftovers(own_job: str) -> LeftoversSeen:
    """Return the processes of this user that belong to a run of another job.

    Whether that job still runs is not known here; another user's environment cannot be read.
    """
    found = []
    for process in living_processes():
        environ = read_environment(process.pid)
        run_dir = run_of(environ)
        if run_dir is None:
            continue
        variables = (entry.partition("=") for entry in environ.decode(errors="replace").split("\0"))
        job_id = find_job_number({name: value for name, _, value in variables})
        if not job_id or job_id != own_job:
            found.append(Leftover(pid=process.pid, run_dir=run_dir, job_id=job_id))
    return LeftoversSeen(processes=tuple(found[:_MOST_LEFTOVERS]))


def _limit(kind: int) -> int | None:
    soft = resource.getrlimit(kind)[0]
    return None if soft == resource.RLIM_INFINITY or soft >= NO_LIMIT else soft


def _size(path: str) -> int | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_blocks * found.f_frsize
