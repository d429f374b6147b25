"""The records of a submission to a scheduler: one run, or an array of runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """`submission.json`: the submission of one run; `job_id` is Slurm's, or `local-...`.

    `foreground`: `hpc-elastic run` started it inside a job that is not ours to cancel. `array` is the
    folder of the array that the run is a task of, `array_task` its number there, `parameters` what the
    array varies, as this run has it. `selected_by` are the variables of the shell that named the Slurm. `bash_env` is
    the BASH_ENV of that shell, which bash runs before the job's script.
    """

    format_version: int = FORMAT_VERSION
    run: str
    name: str
    site: str
    scheduler: str
    job_id: str
    submitted: str
    host: str
    user: str
    foreground: bool = False
    array: str | None = None
    array_task: int | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    selected_by: Mapping[str, str] = field(default_factory=dict)
    bash_env: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayTask:
    """One run of an array: its number, its id, and what the array varies, as this run has it."""

    task: int
    run: str
    parameters: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraySubmission:
    """`array.json`: the submission of an array of runs.

    The run of task 4 is in the folder `4` beside the record, its job id is `<job_id>_4`. `limit` is how
    many tasks may run at a time; None means no limit.
    """

    format_version: int = FORMAT_VERSION
    array: str
    name: str
    site: str
    scheduler: str
    job_id: str
    submitted: str
    host: str
    user: str
    limit: int | None
    tasks: tuple[ArrayTask, ...]
