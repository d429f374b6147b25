"""Job ids of runs in an array: the array's own, an underscore and the task's number, as Slurm writes them."""

from __future__ import annotations

import re
from collections.abc import Mapping

ARRAY_MARK = "HPC_ELASTIC_ARRAY_MARK"  # our array's script sets it to the number of the job that it was started for

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

    A task of an array is named as such where that is certain, and always for the one whose own number is the
    array's: under that number `scancel` would end all. A job that was submitted inside of a task inherits the
    task's `SLURM_ARRAY_*` (22.05), so that these alone say nothing.
    """
    own = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID")
    array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    if own and array and task and task.isdecimal() and own in (array, environ.get(ARRAY_MARK)):
        return array_task_id(array, int(task))
    return own
