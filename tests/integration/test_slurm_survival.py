"""Lost nodes and agents on the real Slurm: the digits train on without them, from the checkpoint to the end."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.conftest import Door
from tests.integration.digits_runs import Training, is_alive, wait_until_dead, workers_on
from tests.integration.slurm_jobs import (
    DIES,
    agent_pid,
    assert_left_slurm,
    assert_over,
    events,
    frozen,
    start,
    wait_for_ranks,
)
from tests.slurm_sandbox.cluster import Cluster, wait_until

pytestmark = pytest.mark.slurm

Note = Callable[[str, object], None]


@pytest.mark.variant(of="test_the_batch_host_loses_power_while_it_trains")
@pytest.mark.parametrize(
    "node",
    [
        pytest.param("node1", id="head"),
        pytest.param(
            "node3",
            id="member",
            marks=pytest.mark.variant(of="test_the_batch_host_loses_power_while_it_trains"),
        ),
    ],
)
def test_a_killed_agent_takes_its_workers_with_it_and_the_others_train_on(
    slurm_door: Door, slurm: Cluster, record_property: Note, node: str
) -> None:
    training = Training.start(slurm_door)
    workers, agent = workers_on(training.run, node), agent_pid(training.run, node)
    assert workers
    fault, before = time.time(), time.monotonic()
    os.kill(agent, signal.SIGKILL)
    # 0.1 s is what we want; on two busy cores who ends them may wait longer for a turn. Their lease goes on for longer.
    wait_until_dead(workers, within_s=2)
    record_property("workers dead after", f"{1000 * (time.monotonic() - before):.1f} ms")
    training.wait_until_held(2, 3)
    record_property("killed agent", training.times_since(fault, 2))
    result = training.finish(4, 3)
    assert node not in training.nodes(2)
    assert (result["restarts"], training.run.read(training.run.layout.claim(2))["spend"]["node_losses"]) == (0, 1)
    training.assert_completed(slurm)


@pytest.mark.variant(of="test_a_node_that_is_back_before_slurm_has_given_it_up_ends_nobodys_run")
@pytest.mark.mirrored
def test_a_node_without_power_is_left_out_and_the_job_completes(
    slurm_door: Door, slurm: Cluster, record_property: Note
) -> None:
    training = Training.start(slurm_door)
    with slurm.configured(SlurmdTimeout=300):  # as on sites: nothing may wait until Slurm finds out
        fault = time.time()
        slurm.kill("node3")
        training.wait_until_held(2, 3)
        record_property("power off", training.times_since(fault, 2))
        training.finish(4, 3)
        over = time.monotonic()
        assert training.nodes(2) == ["node1", "node2", "node4"]
        free = ["node1", "node2", "node4"]
        wait_until(lambda: [slurm.node_states()[node] for node in free] == ["idle"] * 3, "the other nodes are free")
        record_property("other nodes free", f"{time.monotonic() - over:.1f} s after the end of the run")
    slurm.boot("node3")
    training.assert_completed(slurm)


@pytest.mark.mirrored
def test_a_node_that_is_back_before_slurm_has_given_it_up_ends_nobodys_run(
    slurm_door: Door, slurm: Cluster, record_property: Note
) -> None:
    """Nodes reboot within minutes, and SlurmdTimeout is 5 by default; srun ends the step then, with all its agents."""
    training = Training.start(slurm_door)
    wait_until(lambda: is_srun_stopped(slurm, "node1"), "srun is stopped")
    started = slurmd_start(slurm, "node3")
    with slurm.configured(SlurmdTimeout=300):
        fault = time.time()
        slurm.kill("node3")
        training.wait_until_held(2, 3)
        record_property("power off", training.times_since(fault, 2))
        slurm.boot("node3")
        wait_until(lambda: slurmd_start(slurm, "node3") != started, "slurmctld knows of the new slurmd", within_s=90)
        training.finish(4, 3)
        assert training.nodes(2) == ["node1", "node2", "node4"]
    training.assert_completed(slurm)
    output = Path(training.run.layout.script_output(training.run.job_id))
    assert "missing step" in output.read_text(), "srun, which went on when the run was over, never heard of it"


def slurmd_start(slurm: Cluster, node: str) -> str:
    """When a node's slurmd started, as slurmctld has been told."""
    return slurm.run("scontrol", "show", "node", "--oneliner", node).stdout.partition("SlurmdStartTime=")[2].split()[0]


def is_srun_stopped(slurm: Cluster, node: str) -> bool:
    """Whether srun is stopped on a node; its child, which ends the step when srun is killed, never is."""
    return "T" in [state[0] for state in slurm.run_on(node, "ps", "-C", "srun", "-o", "stat=", check=False).split()]


@pytest.mark.mirrored
def test_a_cut_off_node_kills_its_workers_and_joins_again_when_its_cable_is_healed(
    slurm_door: Door, slurm: Cluster, record_property: Note
) -> None:
    training = Training.start(slurm_door, rejoin="immediately")
    workers = workers_on(training.run, "node2")
    with slurm.configured(SlurmdTimeout=60):  # or Slurm gives the node up, and its agent with it
        cut = time.time()
        slurm.cut("node2")
        record_property("cut off workers dead after", f"{wait_until_dead(workers, within_s=10):.2f} s")
        training.wait_until_held(2, 3)
        record_property("cut", training.times_since(cut, 2))
        wait_until(lambda: time.time() > cut + 10, "ten seconds are over")
        heal = time.time()
        slurm.heal("node2")
        training.wait_until_held(3, 4)
        record_property("healed", training.times_since(heal, 3))
        result = training.finish(4, 3, 4)
        assert training.nodes(2) == ["node1", "node3", "node4"]
        assert training.nodes(3) == ["node1", "node3", "node4", "node2"]  # who stayed keeps its rank
        assert result["restarts"] == 0
        assert "node.returned" in training.event_names()
        training.assert_completed(slurm)


@pytest.mark.variant(of="test_a_cut_off_node_kills_its_workers_and_joins_again_when_its_cable_is_healed")
def test_a_node_that_is_cut_off_twice_is_left_out_of_the_attempts_after_that(
    slurm_door: Door, slurm: Cluster, record_property: Note
) -> None:
    """It is back each time; the second time it is set aside, and a later attempt does without it."""
    training = Training.start(slurm_door, rejoin="immediately")
    run = training.run
    with slurm.configured(SlurmdTimeout=300):  # or Slurm gives the node up, and its agent with it
        slurm.cut("node2")
        training.wait_until_held(2, 3)
        slurm.heal("node2")
        training.wait_until_held(3, 4)
        assert "node2" in training.nodes(3)
        slurm.cut("node2")
        training.wait_until_held(4, 3)
        returned = returns(training)
        slurm.heal("node2")
        wait_until(lambda: returns(training) > returned, "node2 is back", within_s=60, otherwise=training.story)
        status = json.loads(slurm_door.run("status", str(run.path), "--json").stdout)
        assert status["set_aside"] == {"node2": "blamed: lost 2 times in this run"}, training.story()
        assert "blamed: lost 2 times in this run" in " ".join(slurm_door.run("status", str(run.path)).stdout.split())
        os.kill(run.worker_pid(0, attempt=4), signal.SIGKILL)
        training.wait_until_held(5, 3)
        training.finish(4, 3, 4, 3, 3)
        assert [sorted(training.nodes(attempt)) for attempt in (4, 5)] == [["node1", "node3", "node4"]] * 2
        training.assert_completed(slurm)
    claim = run.read(run.layout.claim(5))
    assert [(each["node"], each["times"]) for each in claim["lost_nodes"]] == [("node2", 2)]
    assert [(each["node"], each["why"]) for each in claim["set_aside"]] == [("node2", "lost 2 times in this run")]
    blamed = json.loads(slurm_door.run("nodes", "--json").stdout)
    (node2,) = [each for each in blamed if each["node"] == "node2"]
    assert (node2["problem"], len(node2["incidents"])) == ("node_problem", 2), blamed
    record_property("nodes", slurm_door.run("nodes").stdout)
    record_property("explain", slurm_door.run("explain", str(run.path)).stdout)


def returns(training: Training) -> int:
    """How often a head has noted that a node is back."""
    return sum(event["name"] == "node.returned" for event in events(training.run))


@pytest.mark.variant(of="test_a_node_that_is_back_before_slurm_has_given_it_up_ends_nobodys_run")
def test_two_nodes_lost_at_once_are_left_out(slurm_door: Door, slurm: Cluster, record_property: Note) -> None:
    training = Training.start(slurm_door)
    fault = time.time()
    slurm.kill("node2")
    slurm.kill("node4")
    training.wait_until_held(2, 2)
    record_property("two off", training.times_since(fault, 2))
    training.finish(4, 2)
    assert training.nodes(2) == ["node1", "node3"]
    assert training.run.read(training.run.layout.claim(2))["spend"]["node_losses"] == 2
    for node in ("node2", "node4"):
        slurm.boot(node)
    training.assert_completed(slurm)


@pytest.mark.variant(of="test_a_killed_agent_ends_the_run_at_once_and_leaves_no_worker")
def test_too_few_nodes_end_the_run_by_name_when_the_silent_ones_had_their_time(
    slurm_door: Door, slurm: Cluster, record_property: Note
) -> None:
    run = start(slurm_door, DIES, ranks=4, nodes="{min: 3, max: 4}", workers="1", more="elastic: {lease: 3s}")
    fault = time.monotonic()
    slurm.kill("node2")
    slurm.kill("node4")
    wait_until(run.is_over, "the run is over", within_s=30, otherwise=run.story)
    record_property("below min", f"over after {time.monotonic() - fault:.2f} s")
    result = assert_over(run, "FAILED", 7, killed=slurm.nodes)
    assert result["reason"] == "node_lost"
    assert "node2" in result["cause"], result
    assert "node4" in result["cause"], result
    for node in ("node2", "node4"):
        slurm.boot(node)
    assert_left_slurm(slurm, run, "FAILED", "7:0")


@pytest.mark.variant(of="test_a_spare_of_another_role_takes_the_place_of_a_lost_node_and_runs_its_program")
def test_a_spare_takes_the_place_of_a_lost_node_and_the_others_keep_their_ranks(
    slurm_door: Door, slurm: Cluster, record_property: Note
) -> None:
    training = Training.start(slurm_door, ranks=3, nodes="3", more="spares: 1")
    assert training.nodes(1) == ["node1", "node2", "node3"]
    assert not workers_on(training.run, "node4")
    spare = agent_pid(training.run, "node4")
    fault = time.time()
    slurm.kill("node2")
    training.wait_until_held(2, 3)
    record_property("spare", training.times_since(fault, 2))
    assert training.nodes(2) == ["node1", "node4", "node3"]
    assert is_alive(spare)
    # Slurm would find that out by itself, and lets the job's step wait for the node until then.
    slurm.run("scontrol", "update", "NodeName=node2", "State=DOWN", "Reason=no power")
    training.finish(3, 3)
    assert "spare.swapped_in" in training.event_names()
    slurm.boot("node2")
    training.assert_completed(slurm)


@pytest.mark.variant(of="test_a_frozen_agent_has_its_workers_killed_by_its_guard_and_leaves_when_it_wakes")
def test_a_frozen_agent_has_its_workers_killed_by_its_guard_and_is_parked_when_it_wakes(
    slurm_door: Door, slurm: Cluster, record_property: Note
) -> None:
    training = Training.start(slurm_door)
    workers = workers_on(training.run, "node3")
    with frozen(agent_pid(training.run, "node3")):
        fault = time.time()
        record_property("guard", f"killed the workers after {wait_until_dead(workers, within_s=10):.2f} s")
        training.wait_until_held(2, 3)
        record_property("frozen", training.times_since(fault, 2))
    wait_until(lambda: "node.parked" in training.event_names(), "it is parked", otherwise=training.story)
    training.finish(4, 3)
    training.assert_completed(slurm)


@pytest.mark.variant(of="test_a_cut_off_node_kills_its_workers_and_joins_again_when_its_cable_is_healed")
@pytest.mark.parametrize("hears", [True, False], ids=["says-nothing", "hears-nothing"])
def test_a_node_with_a_way_to_the_head_in_one_direction_only_is_lost(
    slurm_door: Door, slurm: Cluster, hears: bool
) -> None:
    run = start(slurm_door, DIES, ranks=4, nodes="{min: 2, max: 4}", workers="1", more="elastic: {lease: 3s}")
    workers = workers_on(run, "node3")
    deaf, mute = ("node1", "node3") if hears else ("node3", "node1")
    with slurm.firewall(deaf, f"ip saddr {slurm.layout.address(mute)} drop"):
        wait_until_dead(workers, within_s=10)
        wait_for_ranks(run, 3, attempt=2)
        assert not workers_on(run, "node3")
        assert [node["node"] for node in run.read(run.layout.world(2))["nodes"]] == ["node1", "node2", "node4"]
    slurm_door.run("cancel", run.job_id)
    assert_over(run, "CANCELLED", 10, killed=slurm.nodes)
