"""Finds out whether the job that a Slurm knows by an id is a run's, and whether this script's job is an array's task.

Clusters that share a file system number their jobs for themselves. A login node of another cluster sees the run's
directory, and its own Slurm, or its accounting of years, may know another job by that id.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, MutableMapping, Sequence
from functools import lru_cache
from typing import Any

from hpc_elastic.errors import SchedulerError
from hpc_elastic.job_ids import ARRAY_MARK, array_task_id, split_task_id
from hpc_elastic.scheduler.slurm import commands
from hpc_elastic.scheduler.slurm.output import is_job_id
from hpc_elastic.scheduler.slurm.runner import Runner, run_command
from hpc_elastic.scheduler.slurm.step import find_job_number

_ANSWERS_S = 4.0


def may_be_of_another_cluster(submission: Mapping[str, Any]) -> bool:
    """Return whether this shell may ask another Slurm than the one that got the job.

    It is surely the same on the machine that submitted the run, or where the record names the cluster, which is then
    the one that is asked. Where the submission could not be recorded, nothing says that it was elsewhere.
    """
    if not submission:
        return False
    chosen = commands.selection(commands.as_submitted(os.environ, submission, host=os.uname().nodename))
    is_named = submission.get("host") == os.uname().nodename or "SLURM_CLUSTERS" in chosen
    return not is_named or chosen != (submission.get("selected_by") or {})


def is_anothers_job(job_id: str, submission: Mapping[str, Any], folder: str) -> bool:
    """Return whether the Slurm that is asked here knows another job by the id of a run's.

    Another one has another name and another working directory than the run, as Slurm or its accounting says; where
    they say nothing the job is taken for the run's. An allocation that `hpc-elastic run` was called in has its own.

    Args:
        job_id: the job's, or that of a task of an array.
        submission: the run's record.
        folder: the directory of the script, that of the run or of its array.
    """
    if submission.get("foreground") or not is_job_id(job_id) or not may_be_of_another_cluster(submission):
        return False
    split = split_task_id(job_id)
    asked = commands.as_submitted(os.environ, submission, host=os.uname().nodename)
    cluster = commands.selection(asked).get("SLURM_CLUSTERS", "")
    return _is_another(split[0] if split else job_id, cluster, str(submission.get("name")), os.path.realpath(folder))


@lru_cache
def _is_another(job_id: str, cluster: str, name: str, folder: str) -> bool:
    found = describe_job(job_id, cluster)
    return found is not None and found[0] != name and os.path.realpath(found[1]) != folder


def describe_job(job_id: str, cluster: str = "", *, run: Runner = run_command) -> tuple[str, str] | None:
    """Return the name and the working directory of a job; None if neither Slurm nor its accounting says."""
    environ = commands.query_environment(os.environ) | ({"SLURM_CLUSTERS": cluster} if cluster else {})
    for command in (commands.squeue_identity_command(job_id), commands.sacct_identity_command(job_id)):
        try:
            told = run(command, environ=environ, timeout_s=_ANSWERS_S)
        except SchedulerError:
            continue
        if not told.returncode and (found := _parse(told.stdout.splitlines())):
            return found
    return None


def mark_array_task(environ: MutableMapping[str, str], *, run: Runner = run_command) -> None:
    """Set the mark of an array's task, by which `find_job_id` knows it, if this script's job is one by Slurm's word.

    A job that was submitted inside of a task has the task's variables too, and so only Slurm can tell. Without its
    answer the job keeps its own number for an id, which is as good for all but people.
    """
    own, array, task = find_job_number(environ), environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    if not (own and array and task and task.isdecimal()) or own in (array, environ.get(ARRAY_MARK)):
        return
    command = commands.task_number_command(array_task_id(array, int(task)))
    with contextlib.suppress(SchedulerError):
        told = run(command, environ=commands.query_environment(environ), timeout_s=_ANSWERS_S)
        if not told.returncode and told.stdout.split() == [own]:
            environ[ARRAY_MARK] = own


def _parse(lines: Sequence[str]) -> tuple[str, str] | None:
    """Return what the last line says, `name|directory` with or without a `|` after it, as far as it is known."""
    last = next((line.rstrip() for line in reversed(lines) if line.strip()), "")
    name, _, directory = last.removesuffix(commands.SEPARATOR).rpartition(commands.SEPARATOR)
    return (name, directory) if name and os.path.isabs(directory) else None
