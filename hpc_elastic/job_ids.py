"""The forms of job ids: one of this machine begins with `local-`, one of an array's task ends in `_<task>`."""

from __future__ import annotations

import re

RESERVATION_VARIABLE = "SLURM_JOB_RESERVATION"  # of a job that was started in one (22.05 to 26.05)
TIME_LEFT_VARIABLE = "HPC_ELASTIC_TIME_LEFT"  # the script's answer of squeue to its question for the job's time left
ARRAY_MARK = "HPC_ELASTIC_ARRAY_MARK"  # our array's script sets it to the number of the job that it was started for

_TASK = re.compile(r"(.+)_(0|[1-9][0-9]{0,8})", re.ASCII)


LOCAL_PREFIX = "local-"


def is_local(job_id: str) -> bool:
    """Return whether this id is of a job on this machine, which no other scheduler knows."""
    return job_id.startswith(LOCAL_PREFIX)


def array_task_id(array: str, task: int) -> str:
    """Return the id of an array's task: `1234_5`."""
    return f"{array}_{task}"


def split_task_id(job_id: str) -> tuple[str, int] | None:
    """Return the array's id and the task's number of a task's id; None for any other id."""
    match = _TASK.fullmatch(job_id)
    return (match[1], int(match[2])) if match else None


def array_task_of(job_id: str) -> int | None:
    """Return the task's number of a task's id; None for any other id."""
    split = split_task_id(job_id)
    return None if split is None else split[1]
