"""A scheduler that is asked in the background: its answer is waited for shortly, and kept."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from hpc_elastic.errors import SchedulerError
from hpc_elastic.observe.background import BackgroundQuery
from hpc_elastic.observe.watch import RunWatch
from hpc_elastic.rundir.states import RunState
from hpc_elastic.scheduler.protocol import JobState, JobStatus
from tests.observe.builders import RunBuilder


class HungScheduler:
    """A scheduler that answers when it is let."""

    def __init__(self, error: Exception | None = None) -> None:
        self.may_answer, self.has_answered = threading.Event(), threading.Event()
        self.asked: list[list[str]] = []
        self.error = error

    def query(self, job_ids: Sequence[str]) -> Mapping[str, JobStatus]:
        self.asked.append([*job_ids])
        self.may_answer.wait(60)
        self.has_answered.set()
        if self.error:
            raise self.error
        return {job_id: JobStatus(job_id=job_id, state=JobState.PENDING, native_state="PENDING") for job_id in job_ids}


def let_answer(hung: HungScheduler, background: BackgroundQuery) -> None:
    hung.may_answer.set()
    assert background._question is not None
    assert background._question.is_answered.wait(60)


def test_answer_that_comes_in_time_is_given() -> None:
    hung = HungScheduler()
    hung.may_answer.set()
    background = BackgroundQuery(hung, patience_s=60)
    assert background.query(["1"])["1"].state is JobState.PENDING
    assert background.query(["1"])["1"].state is JobState.PENDING
    assert hung.asked == [["1"], ["1"]]


def test_late_answer_is_kept_and_nobody_is_asked_twice_meanwhile() -> None:
    hung = HungScheduler()
    background = BackgroundQuery(hung, patience_s=0)
    for _ in range(3):
        with pytest.raises(SchedulerError, match=r"^Slurm does not answer$"):
            background.query(["1"])
    let_answer(hung, background)
    assert background.query(["1"])["1"].state is JobState.PENDING
    assert hung.asked == [["1"]]


def test_late_answer_about_other_jobs_is_asked_again() -> None:
    hung = HungScheduler()
    background = BackgroundQuery(hung, patience_s=0)
    with pytest.raises(SchedulerError):
        background.query(["1"])
    let_answer(hung, background)
    hung.may_answer.clear()
    with pytest.raises(SchedulerError):
        background.query(["1", "2"])
    let_answer(hung, background)
    assert background.query(["1", "2"]).keys() == {"1", "2"}
    assert hung.asked == [["1"], ["1", "2"]]


def test_refusal_is_raised() -> None:
    hung = HungScheduler(SchedulerError("Socket timed out"))
    hung.may_answer.set()
    with pytest.raises(SchedulerError, match="Socket timed out"):
        BackgroundQuery(hung, patience_s=60).query(["1"])


def test_watch_sees_the_end_of_a_run_while_the_scheduler_hangs(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    hung = HungScheduler()
    watch = RunWatch(run.layout, BackgroundQuery(hung, patience_s=0))
    snapshot = watch.look()
    assert (snapshot.state, snapshot.note) == (
        RunState.RUNNING,
        "the state is from the run directory alone: Slurm does not answer",
    )
    run.end()
    assert watch.look().state is RunState.SUCCEEDED
    assert not hung.has_answered.is_set()
    hung.may_answer.set()
