"""Reads the variables of an agent's environment on this machine, which the local template sets; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpc_elastic.errors import AllocationError
from hpc_elastic.job_ids import TIME_LEFT_VARIABLE, array_task_of
from hpc_elastic.scheduler.allocation import Allocation, read_number

JOB_ID_VARIABLE = "HPC_ELASTIC_LOCAL_JOB_ID"


def is_here(environ: Mapping[str, str]) -> bool:
    """Return whether this is the environment of a job on this machine."""
    return JOB_ID_VARIABLE in environ


def derive_start(environ: Mapping[str, str]) -> tuple[str, int]:
    """Return the job's id and 0, because no job of this machine is started again."""
    return environ[JOB_ID_VARIABLE], 0


def derive_allocation(environ: Mapping[str, str]) -> Allocation:
    """Return an agent's place among the agents of its job.

    Raises:
        AllocationError: the variables do not have the values that the template sets.
    """
    count = read_number(environ, "HPC_ELASTIC_LOCAL_NODES")
    node_id = read_number(environ, "HPC_ELASTIC_LOCAL_NODE_ID")
    if node_id >= count:
        raise AllocationError(f"HPC_ELASTIC_LOCAL_NODE_ID is {node_id}, but there are {count} local nodes")
    job_id = environ[JOB_ID_VARIABLE]
    return Allocation(
        job_id=job_id,
        restart_count=0,
        array_task=array_task_of(job_id),
        node_id=node_id,
        nodes=tuple(f"local{number}" for number in range(count)),
        is_local=True,
        time_left=environ.get(TIME_LEFT_VARIABLE),
        runs_at_once=max(1, read_number(environ, "HPC_ELASTIC_LOCAL_RUNS_AT_ONCE", default=1)),
    )


def find_cancelled_step(lines: Sequence[str]) -> str:  # noqa: ARG001
    """Return that no step was cancelled: there are none here."""
    return ""
