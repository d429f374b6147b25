"""Many runs under observation: one question a round, asked after every directory was read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from hpc_elastic.errors import SchedulerError
from hpc_elastic.observe.many import ManyWatch
from hpc_elastic.scheduler.protocol import JobState, JobStatus
from tests.observe.builders import RunBuilder


class Asked:
    """A scheduler that says the same of every job, and notes the questions."""

    cluster = ""

    def __init__(self, state: JobState, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.state = state
        self.meanwhile = meanwhile
        self.questions: list[list[str]] = []
        self.is_silent = False

    def query(self, job_ids: Sequence[str]) -> Mapping[str, JobStatus]:
        self.questions.append(list(job_ids))
        self.meanwhile()
        if self.is_silent:
            raise SchedulerError("squeue does not answer")
        state = self.state
        return {job_id: JobStatus(job_id=job_id, state=state, native_state=state.value) for job_id in job_ids}


@pytest.fixture
def runs(tmp_path: Path) -> list[RunBuilder]:
    return [RunBuilder(tmp_path / f"run{number}").submit(f"7_{number}") for number in range(3)]


def watch(runs: Sequence[RunBuilder], scheduler: Asked, warnings: list[str] | None = None) -> ManyWatch:
    layouts = [(run.layout, "slurm") for run in runs]
    return ManyWatch(layouts, lambda name, run_dir: scheduler, warn=([] if warnings is None else warnings).append)


def states(many: ManyWatch) -> list[str]:
    return ["none" if snapshot is None else snapshot.state.value for snapshot in many.look()]


def test_a_round_is_one_question_for_the_runs_that_are_not_over(runs: list[RunBuilder]) -> None:
    runs[1].allocate().open_attempt(1).end()
    scheduler = Asked(JobState.PENDING)
    assert states(watch(runs, scheduler)) == ["PENDING", "SUCCEEDED", "PENDING"]
    assert scheduler.questions == [["7_0", "7_2"]]


def test_a_start_while_the_scheduler_is_asked_is_no_requeue(runs: list[RunBuilder]) -> None:
    """PENDING is the answer of before the start; beside the start's claim it would look like a requeue."""
    scheduler = Asked(JobState.PENDING, meanwhile=lambda: runs[2].allocate())
    assert states(watch(runs, scheduler)) == ["PENDING", "PENDING", "PENDING"]


def test_a_scheduler_that_is_silent_is_asked_once_a_round(runs: list[RunBuilder]) -> None:
    scheduler = Asked(JobState.PENDING)
    scheduler.is_silent = True
    many = watch(runs, scheduler)
    assert states(many) == ["PENDING"] * 3
    assert (len(scheduler.questions), many.trouble) == (1, "squeue does not answer")


def test_a_run_that_is_over_is_not_read_again(runs: list[RunBuilder]) -> None:
    runs[0].allocate().open_attempt(1).end()
    many = watch(runs, Asked(JobState.PENDING))
    assert states(many)[0] == "SUCCEEDED"
    Path(runs[0].layout.result).unlink()
    assert states(many)[0] == "SUCCEEDED"


def test_jobs_that_were_cancelled_while_they_waited_get_their_results(runs: list[RunBuilder]) -> None:
    scheduler = Asked(JobState.CANCELLED)
    assert states(watch(runs, scheduler)) == ["CANCELLED"] * 3
    assert len(scheduler.questions) == 1
    assert all(Path(run.layout.result).exists() for run in runs)


def test_a_run_that_cannot_be_read_is_said_so_and_left_out(runs: list[RunBuilder]) -> None:
    Path(runs[0].layout.result).mkdir()
    warnings: list[str] = []
    assert states(watch(runs, Asked(JobState.PENDING), warnings)) == ["none", "PENDING", "PENDING"]
    assert len(warnings) == 1
    assert runs[0].layout.result in warnings[0]


def test_jobs_of_two_clusters_with_the_same_id_are_asked_for_at_their_own(tmp_path: Path) -> None:
    here, there = (RunBuilder(tmp_path / name).submit("7") for name in ("here", "there"))
    clusters = {here.layout.root: Asked(JobState.RUNNING), there.layout.root: Asked(JobState.PENDING)}
    clusters[there.layout.root].cluster = "other"
    layouts = [(run.layout, "slurm") for run in (here, there)]
    many = ManyWatch(layouts, lambda _, run_dir: clusters[run_dir], warn=pytest.fail)
    assert states(many) == ["RUNNING", "PENDING"]
