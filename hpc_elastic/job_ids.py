"""Job ids of runs in an array: the array's own, an underscore and the task's number, as Slurm writes them."""

from __future__ import annotations

import re
from collections.abc import Mapping

_TASK = re.compile(r"(.+)_(0|[1-9][0-9]{0,8})", re.ASCII)


def array_task_id(array: str, task: int) -> str:
    """The id of a task: `1234_5`."""
    return f"{array}_{task}"


def split_task_id(job_id: str) -> tuple[str, int] | None:
    """The array's id and the task's number; None for any other id."""
    match = _TASK.fullmatch(job_id)
    return (match[1], int(match[2])) if match else None


def array_task_of(job_id: str) -> int | None:
    """The number of a task; None for any other job."""
    split = split_task_id(job_id)
    return None if split is None else split[1]


def slurm_job_id(environ: Mapping[str, str]) -> str | None:
    """The id of the Slurm job that this environment is of; None if it is of none.

    A task of an array is named as such: Slurm gives each a number of its own besides, but one of them
    that of the array, for which `scancel` ends all.
    """
    array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    if array and task and task.isdecimal():
        return array_task_id(array, int(task))
    return environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID")
