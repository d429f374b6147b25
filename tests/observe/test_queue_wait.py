"""When a job that waits is expected to start: asked seldom, said once."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from hpc_elastic.observe.queue_wait import ASKS_EVERY_S, QueueWait, ask_scheduler
from hpc_elastic.observe.snapshot import Snapshot, take_snapshot
from hpc_elastic.rundir.states import RunState
from hpc_elastic.scheduler.protocol import JobState
from tests.observe.builders import RunBuilder
from tests.observe.test_snapshot import TellingScheduler


class Estimates:
    """A scheduler's estimates, one after the other, and a clock."""

    def __init__(self, *starts: datetime | None) -> None:
        self._starts = list(starts)
        self.now = 0.0
        self.wait = QueueWait(self.ask, lambda: self.now)

    def ask(self, job_id: str, run_dir: str) -> datetime | None:
        assert job_id == "42"
        return self._starts.pop(0)


@pytest.fixture
def waiting(tmp_path: Path) -> Snapshot:
    """A run whose job is in the queue."""
    snapshot = take_snapshot(RunBuilder(tmp_path).submit().layout, TellingScheduler(JobState.PENDING, "Resources"))
    return replace(snapshot, job_id="42")


NOON = datetime(2026, 11, 23, 12, 0)
EXPECTED = "job 42 is expected to start at 2026-11-23 12:00"


def test_an_estimate_is_said_once_and_asked_for_seldom(waiting: Snapshot) -> None:
    estimates = Estimates(None, NOON, NOON, datetime(2026, 11, 23, 13, 30))
    said = []
    for second in range(int(3 * ASKS_EVERY_S) + 1):
        estimates.now = float(second)
        said.append(estimates.wait.advance(waiting))
    assert [line for line in said if line] == [EXPECTED, EXPECTED.replace("12:00", "13:30")]
    assert said[int(ASKS_EVERY_S)] == EXPECTED


def test_a_job_that_runs_is_not_asked_about_and_one_that_waits_again_is(waiting: Snapshot) -> None:
    estimates = Estimates(NOON, NOON)
    assert estimates.wait.advance(waiting) == EXPECTED
    estimates.now = ASKS_EVERY_S
    assert estimates.wait.advance(replace(waiting, state=RunState.RUNNING)) == ""
    assert estimates.wait.advance(replace(waiting, state=RunState.REQUEUED)) == EXPECTED


def test_there_is_no_estimate_where_nothing_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ask_scheduler("local-4711", str(tmp_path)) is None
    assert ask_scheduler("42", str(tmp_path)) is None


def test_the_estimate_is_that_of_the_cluster_that_got_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    squeue = tmp_path / "bin" / "squeue"
    squeue.parent.mkdir()
    row = "PENDING|0|1:00|0:00|2026-11-23T12:00:00|N/A|N/A|(null)|Priority|"
    squeue.write_text(f'#!/bin/sh\n[ "$SLURM_CLUSTERS" = big ] && echo "{row}"\n')
    squeue.chmod(0o700)
    monkeypatch.setenv("PATH", f"{squeue.parent}:{os.environ['PATH']}")
    monkeypatch.delenv("SLURM_CLUSTERS", raising=False)
    run = RunBuilder(tmp_path / "run").submit(selected_by={"SLURM_CLUSTERS": "big"})
    assert ask_scheduler("42", run.layout.root) == NOON
