"""How many questions all jobs of a process make together."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from submitit.core.utils import JobPaths

from hpc_elastic.codec import to_json
from hpc_elastic.errors import SchedulerError
from hpc_elastic.integrations.submitit.job import HpcElasticJob
from hpc_elastic.integrations.submitit.paths import run_link
from hpc_elastic.integrations.submitit.watcher import SAME_ANSWER_S, RunWatcher, SharedQuestions
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.states import RunState
from hpc_elastic.rundir.store import write_json
from hpc_elastic.scheduler.protocol import JobState, JobStatus
from tests.agent.records.runs import a_result


class Asked:
    """A scheduler that writes down what it is asked."""

    name = "slurm"
    answers_at_once = False

    def __init__(self) -> None:
        self.questions: list[list[str]] = []
        self.is_down = False

    def submit(self, plan: Any, script: str) -> str:
        raise NotImplementedError

    def cancel(self, job_id: str) -> None:
        raise NotImplementedError

    def query(self, job_ids: Sequence[str]) -> Mapping[str, JobStatus]:
        self.questions.append(list(job_ids))
        if self.is_down:
            raise SchedulerError("Slurm does not answer")
        return {job_id: JobStatus(job_id=job_id, state=JobState.RUNNING, native_state="RUNNING") for job_id in job_ids}


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def made(*job_ids: str) -> tuple[SharedQuestions, Asked, Clock]:
    asked, clock = Asked(), Clock()
    shared = SharedQuestions(asked, clock=clock)
    for job_id in job_ids:
        shared.add(job_id)
    return shared, asked, clock


def test_one_question_is_for_all_jobs() -> None:
    shared, asked, clock = made("1", "2_0", "2_1")
    for job_id in ("1", "2_0", "2_1", "1"):
        assert shared.query([job_id])[job_id].job_id == job_id
    assert asked.questions == [["1", "2_0", "2_1"]]
    clock.now += SAME_ANSWER_S + 0.1
    shared.query(["2_1"])
    assert len(asked.questions) == 2


def test_a_job_that_is_over_is_not_asked_about_again() -> None:
    shared, asked, clock = made("1", "2")
    shared.query(["1"])
    shared.drop("1")
    clock.now += SAME_ANSWER_S + 0.1
    shared.query(["2"])
    assert asked.questions[-1] == ["2"]


def test_a_new_job_is_asked_about_at_once() -> None:
    shared, asked, _ = made("1")
    shared.query(["1"])
    shared.add("2")
    assert shared.query(["2"])["2"].job_id == "2"
    assert asked.questions[-1] == ["1", "2"]


def test_silence_of_the_scheduler_is_told_and_asked_again() -> None:
    shared, asked, _ = made("1")
    asked.is_down = True
    with pytest.raises(SchedulerError):
        shared.query(["1"])
    asked.is_down = False
    assert shared.query(["1"])["1"].state is JobState.RUNNING


def test_a_job_with_the_number_of_an_earlier_one_is_not_taken_for_it(tmp_path: Path) -> None:
    """Two clusters count their jobs each for itself, and a controller may begin again."""
    ended, later = RunLayout(tmp_path / "ended"), RunLayout(tmp_path / "later")
    os.makedirs(later.root)
    os.makedirs(ended.root)
    write_json(ended.result, to_json(a_result()))
    watcher = RunWatcher()
    watcher.register_run("7", ended, Asked())
    assert watcher.is_done("7")
    watcher.register_run("7", later, Asked())
    assert not watcher.is_done("7")


def test_jobs_of_two_folders_with_one_id_are_two_jobs(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("has succeeded", "has failed", "is empty")]
    for folder, is_good in zip(folders, (True, False), strict=False):
        run = folder / "run"
        run.mkdir(parents=True)
        write_json(
            str(run / "result.json"), to_json(a_result() if is_good else replace(a_result(1), state=RunState.FAILED))
        )
        run_link(JobPaths(folder, "17")).symlink_to(run)
    folders[2].mkdir()
    jobs: list[HpcElasticJob[Any]] = [HpcElasticJob(folder, "17") for folder in folders]
    assert [job.state for job in jobs] == ["COMPLETED", "FAILED", "UNKNOWN"]
    assert [job.get_info().get("runDir") for job in jobs] == [str(folders[0] / "run"), str(folders[1] / "run"), None]
