"""What is read of a run directory, also of one that is torn or half there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpc_elastic.errors import SchedulerError
from hpc_elastic.observe.snapshot import snapshot_to_json, take_snapshot
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.states import RunState
from hpc_elastic.scheduler.protocol import JobState, JobStatus
from tests.observe.builders import TIME, RunBuilder


class SilentScheduler:
    """A scheduler that does not answer."""

    name = "slurm"

    def submit(self, plan: LaunchPlan, script: str) -> str:
        raise SchedulerError("the controller does not answer")

    def query(self, job_ids: Sequence[str]) -> Mapping[str, JobStatus]:
        raise SchedulerError("the controller does not answer")

    def cancel(self, job_id: str) -> None:
        raise SchedulerError("the controller does not answer")


class TellingScheduler(SilentScheduler):
    """A scheduler that says what it was told."""

    def __init__(self, state: JobState, reason: str | None = None) -> None:
        self.state, self.reason = state, reason
        self.asked: list[tuple[str, ...]] = []

    def query(self, job_ids: Sequence[str]) -> Mapping[str, JobStatus]:
        self.asked.append(tuple(job_ids))
        return {
            job_id: JobStatus(job_id=job_id, state=self.state, native_state=self.state.value, reason=self.reason)
            for job_id in job_ids
        }


def test_snapshot_of_a_run_that_restarted(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    run.open_attempt(2, reason="rank 3 was killed by SIGKILL", restarts=1)
    snapshot = take_snapshot(run.layout, TellingScheduler(JobState.RUNNING))
    assert snapshot.state is RunState.RUNNING
    assert (snapshot.attempts, snapshot.restarts, snapshot.max_restarts) == (2, 1, 3)
    assert (snapshot.nodes, snapshot.workers) == (("node1", "node2"), 4)
    assert [attempt.reason for attempt in snapshot.attempt_history][1] == "rank 3 was killed by SIGKILL"


def test_scheduler_is_not_asked_if_there_is_a_result(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1).end()
    scheduler = TellingScheduler(JobState.GONE)
    assert take_snapshot(run.layout, scheduler).state is RunState.SUCCEEDED
    assert scheduler.asked == []


def test_newest_allocation_says_which_job_is_asked_for(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit("42").allocate(1).allocate(2, job_id="43")
    scheduler = TellingScheduler(JobState.RUNNING)
    assert take_snapshot(run.layout, scheduler).job_id == "43"
    assert scheduler.asked == [("43",)]


def test_silent_scheduler_is_a_note_and_no_error(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate()
    snapshot = take_snapshot(run.layout, SilentScheduler())
    assert snapshot.state is RunState.RUNNING
    assert snapshot.note == "the state is from the run directory alone: the controller does not answer"


def test_torn_and_absent_files_are_tolerated(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1)
    Path(run.layout.world(1)).write_text('{"format_ver')
    Path(run.layout.submission).write_text("")
    Path(run.layout.result).write_text("[]")
    snapshot = take_snapshot(run.layout, None)
    assert (snapshot.state, snapshot.workers, snapshot.job_id) == (RunState.RUNNING, None, "42")


def test_empty_directory_is_a_run_of_which_nothing_is_known(tmp_path: Path) -> None:
    snapshot = take_snapshot(RunLayout(tmp_path), None)
    assert snapshot.state is RunState.PENDING
    assert snapshot.note is not None


def test_json_has_stable_keys(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").submit().allocate().open_attempt(1).end()
    data = json.loads(json.dumps(snapshot_to_json(take_snapshot(run.layout, None))))
    assert list(data) == [
        "format_version", "run", "name", "run_dir", "site", "scheduler", "job_id", "state", "exit_code", "reason",
        "cause", "job_state", "job_reason", "job_nodes", "submitted", "started", "ended", "allocations", "attempts",
        "restarts", "max_restarts", "nodes", "workers", "attempt_history", "failures", "note",
    ]  # fmt: skip
    assert (data["state"], data["exit_code"], data["started"]) == ("SUCCEEDED", 0, TIME)
    assert data["attempt_history"][0]["nodes"] == ["node1", "node2"]
