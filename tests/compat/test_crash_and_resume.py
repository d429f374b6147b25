"""The examples of Lightning, accelerate and transformers finish although a rank and then a node is killed."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.compat.training import LIBRARIES, Training
from tests.integration.conftest import Door
from tests.slurm_sandbox.cluster import wait_until
from tests.soak.patient import Patient


def assert_resumes(training: Training, attempt: int, *, ranks: int) -> int:
    """An attempt goes on from one of the checkpoints that were whole; returns its number."""

    def has_resumed() -> bool:
        return training.resumed_from(attempt, ranks=ranks) is not None

    wait_until(has_resumed, f"attempt {attempt} goes on", within_s=60, otherwise=training.run.story)
    number = training.resumed_from(attempt, ranks=ranks)
    assert number is not None
    assert number < 9999, "that is the number of the half one"
    return number


def assert_killed(training: Training, rank: int, node: str) -> None:
    error = training.run.read(training.run.layout.error(1, rank))
    assert (error["class"], error["signal"], error["rank"], error["node"]) == ("signal", "SIGKILL", rank, node)


def assert_succeeds(training: Training, door: Door, *, attempts: int) -> None:
    """All that was killed has cost one restart."""
    run = training.run
    result = run.wait_until_over(within_s=120)
    assert (result["state"], result["exit_code"]) == ("SUCCEEDED", 0), run.story()
    assert (result["attempts"], result["restarts"]) == (attempts, 1), run.story()
    assert training.library.last in training.said(attempts), run.story()
    status = door.run("status", run.job_id).stdout
    assert re.search(r"^state +SUCCEEDED, exit code 0$", status, re.M), status
    assert re.search(r"^restarts +1 of 3$", status, re.M), status


@pytest.mark.variant(of="test_a_training_whose_ranks_are_killed_ends_with_the_weights_of_an_undisturbed_one")
@pytest.mark.local
@pytest.mark.parametrize(("name", "rank"), [*zip(LIBRARIES, (3, 0, 2), strict=True)])
def test_an_example_goes_on_from_its_checkpoint_if_a_rank_and_then_a_node_is_killed(
    door: Door, python: Path, name: str, rank: int
) -> None:
    training = Training.start(door, name, python, "--site", "local")
    assert training.resumed_from(1, ranks=4) is None
    training.kill_in_the_middle(rank)
    first = assert_resumes(training, 2, ranks=4)
    os.kill(Patient(training.run).agents()["local1"], signal.SIGKILL)
    assert assert_resumes(training, 3, ranks=2) >= first
    assert_succeeds(training, door, attempts=3)
    assert_killed(training, rank, f"local{rank // 2}")
    for node in ("local0", "local1"):
        assert "workers are forks of a process that has torch" in training.agent_log(node)
    training.run.assert_nothing_left()
    training.run.assert_records_valid(killed=("local1",))


@pytest.mark.variant(of="test_a_training_whose_ranks_are_killed_ends_with_the_weights_of_an_undisturbed_one")
@pytest.mark.local
def test_training_that_was_killed_ends_with_the_same_weights_bit_for_bit(door: Door, python: Path) -> None:
    """On two ranks, where a sum has one order only."""
    options = ("--site", "local", "--set", "workers_per_node=1", "--set", "env.OMP_NUM_THREADS=1")
    weights = []
    for is_killed in (False, True):
        training = Training.start(door, "accelerate", python, *options, checkpoints=f"killed-{is_killed}")
        if is_killed:
            training.kill_in_the_middle(1)
        result = training.run.wait_until_over()
        assert (result["state"], result["attempts"]) == ("SUCCEEDED", 1 + is_killed), training.run.story()
        weights.append((training.checkpoints / "step_900" / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]


@pytest.mark.variant(of="test_a_training_whose_ranks_are_killed_ends_with_the_weights_of_an_undisturbed_one")
@pytest.mark.slurm
def test_lightning_goes_on_from_its_checkpoint_on_slurm(slurm_door: Door, python: Path) -> None:
    training = Training.start(slurm_door, "lightning", python, "--site", "generic-slurm")
    training.kill_in_the_middle(3)
    assert_resumes(training, 2, ranks=4)
    assert_succeeds(training, slurm_door, attempts=2)
    assert_killed(training, 3, "node2")
    training.run.assert_nothing_left()
    training.run.assert_records_valid()
