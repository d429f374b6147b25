"""Copies of training states between nodes of this machine whose keepers freeze or die: nothing waits for a keeper."""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="there is no torch")


from tests.integration.conftest import Door, Run
from tests.integration.savers import (
    begun,
    finish,
    keeper_of,
    saved_in,
    train,
    wait_for_copies,
    wait_until_saved,
)
from tests.slurm_sandbox.sandbox import wait_until
from tests.soak.campaign import kill_everything
from tests.soak.patient import Patient
from tests.tiers import variants

pytestmark = pytest.mark.local

MORE = "spares: 1\nelastic: {lease: 3s, join_timeout: 30s}\nstate: {replicas: 1}"
STEP_MS = 400  # so that copies keep up with saves, on a computer with two cores for all nodes
STEP = ("--step-ms", str(STEP_MS))


def messages(run: Run, name: str) -> list[str]:
    lines = [line for path in run.path.glob("nodes/*/events.jsonl") for line in path.read_text().splitlines()]
    return [event["message"] for event in map(json.loads, lines) if event["name"] == name]


def freeze(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


def starve(pid: int) -> None:
    """Let a process have no more memory, and no more descriptors."""
    for limit in (resource.RLIMIT_AS, resource.RLIMIT_NOFILE):
        resource.prlimit(pid, limit, (1, 1))


@pytest.mark.variant(of="test_a_training_whose_ranks_are_killed_ends_with_the_weights_of_an_undisturbed_one")
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGSTOP,
        *variants(
            signal.SIGKILL, of="test_a_training_whose_ranks_are_killed_ends_with_the_weights_of_an_undisturbed_one"
        ),
    ],
)
def test_a_node_is_lost_whose_copies_are_with_a_keeper_that_does_not_answer(door: Door, number: signal.Signals) -> None:
    """What the keeper has got until then is found all the same, by the one that takes its place."""
    run, folder = train(door, *STEP, nodes="3", workers=1, site="local", more=MORE)
    try:
        wait_until_saved(run, folder, 1, 3, more=6)
        agents = Patient(run).agents()
        keeper = keeper_of(agents["local2"])  # it has the copies of local1
        assert keeper is not None
        copied = wait_for_copies(run, folder, keeper, run.worker_pid(2), 1)
        os.kill(keeper, number)
        os.kill(agents["local1"], signal.SIGKILL)
        wait_until_saved(run, folder, 2, 3)
        last = min(saved_in(folder, rank, 1) for rank in range(3))
        (first,) = set(begun(folder, 2).values())
        (line,) = messages(run, "state.chosen")
        assert copied <= first <= last + 1, (last, run.story())
        assert line.startswith(f"attempt 2: all ranks can go on at step {first}, which is in memory; local3 gets it")
        finish(run, folder, 3, step_ms=STEP_MS)
        result = run.wait_until_over()
        assert (result["state"], result["attempts"], result["restarts"]) == ("SUCCEEDED", 2, 0), run.story()
        run.assert_nothing_left()
    finally:
        kill_everything(run)


@pytest.mark.timeout(240)
@pytest.mark.variant(of="test_a_training_whose_ranks_are_killed_ends_with_the_weights_of_an_undisturbed_one")
@pytest.mark.parametrize("harm", [freeze, starve])
def test_saves_wait_for_no_keeper_and_all_ranks_agree_on_a_step_or_load_from_disk(
    door: Door, harm: Callable[[int], None]
) -> None:
    """The keepers do nothing for so many saves that the copy of the lost node may be too old."""
    run, folder = train(door, *STEP, nodes="3", workers=1, site="local", more=MORE)
    try:
        wait_until_saved(run, folder, 1, 3, more=6)
        agents = Patient(run).agents()
        harmed = [pid for node in ("local0", "local1", "local2") if (pid := keeper_of(agents[node])) is not None]
        assert len(harmed) == 3
        for pid in harmed:
            harm(pid)
        before = min(saved_in(folder, rank, 1) for rank in range(3))
        wait_until_saved(run, folder, 1, 3, more=before + 50)

        def are_replaced() -> bool:
            return harm is starve or not any(Path(f"/proc/{pid}").exists() for pid in harmed)

        wait_until(are_replaced, "other keepers are there", within_s=60, otherwise=run.story)
        os.kill(agents["local1"], signal.SIGKILL)
        wait_until_saved(run, folder, 2, 3)
        last = min(saved_in(folder, rank, 1) for rank in range(3))
        (first,) = set(begun(folder, 2).values())
        (line,) = messages(run, "state.chosen")
        assert first in range(last + 2), run.story()
        assert ("all ranks load from disk" in line) == (first == 0), line
        assert f"at step {first}" in line or first == 0
        finish(run, folder, 3, step_ms=STEP_MS)
        assert run.wait_until_over()["state"] == "SUCCEEDED", run.story()
        run.assert_nothing_left()
    finally:
        kill_everything(run)
