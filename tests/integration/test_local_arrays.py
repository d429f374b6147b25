"""Arrays of runs on this machine, with real agents."""

from __future__ import annotations

import os
import signal

import pytest

from tests.integration.arrays import SWEEP, submit, wait_for_states, write_job
from tests.integration.conftest import Door
from tests.slurm_sandbox.cluster import wait_until

pytestmark = pytest.mark.local


@pytest.mark.variant(of="test_an_array_is_one_slurm_job_and_ends_as_its_first_failure")
def test_an_array_ends_as_its_first_failure(door: Door) -> None:
    write_job(door, "local")
    array = submit(door, "--wait", "--array-limit", "2", exit_code=1)
    ok = ("SUCCEEDED", 0)
    array.assert_over(ok, ok, ("FAILED", 1), ok)
    said = [run.stdout(1, 0).split() for run in array.runs]
    assert said == [[f"--lr={1 + n // 2}", str(n % 2), f"{array.path.name}_{n}"] for n in range(4)]


def test_waiting_for_an_array_says_which_run_failed(door: Door) -> None:
    write_job(door, "local")
    done = door.run("submit", "job.yaml", "--wait", *SWEEP, exit_code=1)
    lines = done.stderr.splitlines()
    assert "_2 (lr=2 seed=0): FAILED (exit code 1): rank 0 on local0 failed with exit code 3" in lines[0]
    assert lines[1:] == ["probe: 3 SUCCEEDED, 1 FAILED"]


@pytest.mark.variant(of="test_cancel_of_an_array_stops_what_runs_with_grace_and_what_waits_at_once")
def test_cancel_stops_the_run_that_runs_and_those_that_wait(door: Door) -> None:
    write_job(door, "local", waits=True)
    array = submit(door)
    array.wait_for_waiting(0)
    wait_for_states(door, array, RUNNING=1, PENDING=3)
    done = door.run("cancel", array.job_id)
    assert "probe ended: 4 CANCELLED" in done.stdout
    array.assert_over(*[("CANCELLED", 10)] * 4)
    assert [bool(run.attempts()) for run in array.runs] == [True, False, False, False]


@pytest.mark.variant(of="test_cancel_of_an_array_stops_what_runs_with_grace_and_what_waits_at_once")
def test_one_task_is_cancelled_while_the_others_go_on(door: Door) -> None:
    write_job(door, "local", waits=True)
    array = submit(door)
    array.wait_for_waiting(0)
    door.run("cancel", "probe_1")
    door.run("cancel", f"{array.job_id}_0")
    array.wait_for_waiting(2)
    wait_for_states(door, array, RUNNING=1, PENDING=1, CANCELLED=2)
    door.run("cancel", "probe")
    array.assert_over(*[("CANCELLED", 10)] * 4)


def test_tasks_whose_array_was_killed_are_not_waited_for_for_ever(door: Door) -> None:
    """Nobody starts the others then; the one that runs goes on."""
    write_job(door, "local", waits=True)
    array = submit(door)
    array.wait_for_waiting(0)
    os.kill(int(array.job_id.split("-")[1]), signal.SIGKILL)
    door.run("cancel", array.job_id)
    array.assert_over(*[("CANCELLED", 10)] * 4)


def test_a_task_can_be_run_again_by_hand(door: Door) -> None:
    """Its own job.sh stands on its own, and refuses when the run is over."""
    write_job(door, "local", waits=True)
    array = submit(door)
    array.wait_for_waiting(0)
    door.run("cancel", array.job_id)
    door.command = ("bash",)
    done = door.run(str(array.runs[1].path / "job.sh"), exit_code=5)
    assert "this run is over" in done.stderr
    wait_until(lambda: not array.runs[1].processes(), "nothing is left")
