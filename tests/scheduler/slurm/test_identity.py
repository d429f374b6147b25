"""Whether a job of this Slurm is a run's, or another cluster's job that has the same id."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from hpc_elastic.errors import SchedulerError
from hpc_elastic.scheduler.slurm.identity import describe_job, is_anothers_job, mark_array_task
from hpc_elastic.scheduler.slurm.output import CommandOutput
from hpc_elastic.scheduler.slurm.step import find_job_id
from tests.slurm_sandbox.cluster import Cluster

RUN = "/scratch/runs/digits-1"


class Telling:
    """A Slurm whose squeue and sacct say this; None: the command fails."""

    def __init__(self, squeue: str | None, sacct: str | None) -> None:
        self.says = {"squeue": squeue, "sacct": sacct}

    def __call__(
        self, command: Sequence[str], *, environ: Mapping[str, str], timeout_s: float, cwd: str | None = None
    ) -> CommandOutput:
        told = self.says[command[0]]
        if told == "silent":
            raise SchedulerError("Slurm does not answer")
        return CommandOutput(returncode=int(told is None), stdout=told or "", stderr="")


@pytest.mark.parametrize(
    ("squeue", "sacct", "found"),
    [
        ("digits|/scratch/runs/digits-1|\n", None, ("digits", RUN)),
        ("", "nightly|/home/ada\n", ("nightly", "/home/ada")),
        (None, "first|/home/ada\nnightly|/home/ada\n", ("nightly", "/home/ada")),  # ids begin again: the latest
        ("silent", "a|b|/home/ada\n", ("a|b", "/home/ada")),
        (None, "allocation|\n", None),  # written before slurmdbd knew it
        (None, "silent", None),
        (None, None, None),
    ],
)
def test_the_controller_is_asked_whose_a_job_is_and_then_accounting(
    squeue: str | None, sacct: str | None, found: tuple[str, str] | None
) -> None:
    assert describe_job("42", run=Telling(squeue, sacct)) == found


@pytest.mark.parametrize(
    ("told", "submission", "is_another"),
    [
        ("nightly|/home/ada|", {}, True),
        (f"nightly|{RUN}|", {}, False),  # renamed by a person
        ("digits|/home/ada|", {}, False),  # its script, submitted by hand
        ("", {}, False),
        ("nightly|/home/ada|", {"host": os.uname().nodename}, False),  # the Slurm that got it: not asked
        ("nightly|/home/ada|", {"foreground": True}, False),  # an allocation has a name and a place of its own
    ],
)
def test_a_job_is_anothers_if_its_name_and_its_place_are_others(
    told: str,
    submission: dict[str, object],
    is_another: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("SLURM_CLUSTERS", "SLURM_CONF", "SLURM_CONF_SERVER", "SBATCH_CLUSTERS"):
        monkeypatch.delenv(name, raising=False)
    for program in ("squeue", "sacct"):
        (tmp_path / program).write_text(f"#!/bin/sh\necho '{told}'\n")
        (tmp_path / program).chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    job_id = str(abs(hash((told, repr(submission)))) % 10**8)  # an answer is kept for as long as the process lives
    record = {"name": "digits", "host": "login1", "selected_by": {}, **submission}
    assert is_anothers_job(job_id, record, RUN) is is_another
    assert is_anothers_job(f"{job_id}_3", record, RUN) is is_another


@pytest.mark.every_slurm
def test_slurm_tells_the_name_and_the_directory_of_a_job_and_of_a_task(slurm: Cluster, tmp_path: Path) -> None:
    options = ("--job-name=digits", f"--chdir={tmp_path}", "--output=/dev/null", "--hold")
    for more in ((), ("--array=0-3",)):
        job_id = slurm.submit(*options, *more, "--wrap=true")
        assert describe_job(job_id) == ("digits", str(tmp_path))
        slurm.run("scancel", job_id)
        assert describe_job(job_id) == ("digits", str(tmp_path))


@pytest.mark.parametrize(
    ("own", "told", "job_id"),
    [
        ("58", "58\n", "56_1"),
        ("70", "58\n", "70"),  # submitted inside of the task, whose variables it has
        ("58", "", "58"),
        ("58", None, "58"),
        ("58", "silent", "58"),
        ("56", "silent", "56_1"),  # has the array's own number, and is the task for certain
    ],
)
def test_slurm_is_asked_whether_a_job_is_the_task_that_its_variables_name(
    own: str, told: str | None, job_id: str
) -> None:
    environ = {"SLURM_JOB_ID": own, "SLURM_ARRAY_JOB_ID": "56", "SLURM_ARRAY_TASK_ID": "1"}
    mark_array_task(environ, run=Telling(told, None))
    assert find_job_id(environ) == job_id


def test_slurm_is_not_asked_of_a_job_without_an_arrays_variables() -> None:
    environ = {"SLURM_JOB_ID": "58"}
    mark_array_task(environ, run=Telling("58\n", None))
    assert environ == {"SLURM_JOB_ID": "58"}
