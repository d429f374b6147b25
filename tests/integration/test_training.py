"""The examples: digits on the real Slurm, four nodes with two workers each, and the minimal one on this machine."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.integration.conftest import DIGITS, Door
from tests.slurm_sandbox.cluster import Cluster

RANKS = range(8)


def write_digits_job(door: Door, *arguments: str, more: str = "") -> Path:
    """A job of four nodes that trains the example where it lies and records what each rank did."""
    listed = ", ".join(json.dumps(argument) for argument in ("--record", str(door.folder / "record"), *arguments))
    return door.write(
        "job.yaml",
        f"""
name: digits
nodes: 4
workers_per_node: 2
time: 10m
entrypoint:
  script: {DIGITS / "train.py"}
  args: [{listed}]
env: {{OMP_NUM_THREADS: 1}}
{more}
""",
    )


def records(door: Door, restart: int) -> list[dict[str, object]]:
    """What the ranks of one start wrote down, by rank."""
    paths = sorted((door.folder / "record").glob(f"restart{restart}-rank*.json"))
    return [json.loads(path.read_text()) for path in paths]


def assert_ended_alike(door: Door, restart: int) -> None:
    """All eight ranks went to the same step, with the same parameters bit by bit."""
    written = records(door, restart)
    assert [record["rank"] for record in written] == list(RANKS)
    assert {record["world_size"] for record in written} == {8}
    assert len({record["last_step"] for record in written}) == 1
    assert len({record["parameter_hash"] for record in written}) == 1


@pytest.mark.variant(of="test_a_training_whose_ranks_are_killed_ends_with_the_weights_of_an_undisturbed_one")
@pytest.mark.slurm
def test_digits_train_to_95_percent(slurm_door: Door, slurm: Cluster) -> None:
    write_digits_job(slurm_door)
    run = slurm_door.submit("job.yaml", wait=True)
    returned = time.time()
    result = run.result()
    assert result["state"] == "SUCCEEDED", run.story()
    assert (result["exit_code"], result["attempts"], result["restarts"]) == (0, 1, 0)
    assert result["nodes"] == ["node1", "node2", "node3", "node4"]
    assert Path(run.layout.exit_code).read_text() == "0\n"
    # Bounded loosely here; benchmarks/ measures it.
    assert returned - Path(run.layout.result).stat().st_mtime < 2
    accuracy = float(run.stdout(1, 0).split("accuracy on held-out digits: ")[1].split("%")[0])
    assert accuracy >= 95
    assert_ended_alike(slurm_door, 0)
    job = slurm.wait_for_job(run.job_id, "COMPLETED")
    assert job["ExitCode"] == "0:0"
    run.assert_nothing_left()
    run.assert_records_valid()


@pytest.mark.variant(of="test_two_workers_killed_together_are_one_restart")
@pytest.mark.slurm
def test_training_goes_on_from_its_checkpoint_if_a_rank_is_killed(slurm_door: Door) -> None:
    write_digits_job(slurm_door, "--pause", "0.02")
    run = slurm_door.submit("job.yaml")
    run.wait_for_output("epoch 3/12")
    os.kill(run.worker_pid(5), signal.SIGKILL)
    result = run.wait_until_over()
    assert result["state"] == "SUCCEEDED", run.story()
    assert (result["attempts"], result["restarts"]) == (2, 1)

    error = run.read(run.layout.error(1, 5))
    assert (error["signal"], error["class"], error["rank"], error["node"]) == ("SIGKILL", "signal", 5, "node3")
    assert error["message"]["message"] == "killed by SIGKILL"

    second = records(slurm_door, 1)
    assert [record["restart_count"] for record in second] == [1] * 8
    checkpoint_every = 10
    first_steps = {record["first_step"] for record in second}
    assert len(first_steps) == 1
    first_step = int(str(first_steps.pop()))
    assert first_step > 1
    assert (first_step - 1) % checkpoint_every == 0
    assert f"resumed at step {first_step}" in run.stdout(2, 0)
    assert_ended_alike(slurm_door, 1)
    run.assert_nothing_left()
    run.assert_records_valid()


@pytest.mark.variant(of="test_status_and_logs_tell_the_cause_of_a_failed_run")
@pytest.mark.slurm
def test_an_undecorated_script_that_raises_leaves_its_traceback(slurm_door: Door) -> None:
    write_digits_job(slurm_door, "--fail-at-step", "30", "--fail-rank", "3")
    run = slurm_door.submit("job.yaml", wait=True)
    result = run.result()
    assert (result["state"], result["attempts"], result["restarts"]) == ("SUCCEEDED", 2, 1), run.story()
    error = run.read(run.layout.error(1, 3))
    assert error["class"] == "exception"
    assert error["message"]["extraInfo"]["py_callstack"].startswith("Traceback (most recent call last)")
    assert "train.py" in error["message"]["extraInfo"]["py_callstack"]
    claim = run.read(run.layout.claim(2))
    assert claim["predecessor"] == 1
    assert claim["spend"]["restarts"] == 1
    assert "rank 3 on node2" in claim["reason"]


@pytest.mark.local
def test_minimal_example_learns(door: Door) -> None:
    run = door.submit(str(DIGITS.parent / "minimal" / "job.yaml"), "--site", "local", wait=True)
    assert run.result()["state"] == "SUCCEEDED", run.story()
    assert "step 100: loss" in run.stdout(1, 0)
    run.assert_nothing_left()
