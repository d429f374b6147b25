"""Losses on the real Slurm in jobs that need every node: the run ends at once, with a result, and nothing is left."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.conftest import Door, Run
from tests.integration.digits_runs import NODES, workers_on
from tests.integration.slurm_jobs import (
    DIES,
    STUBBORN,
    agent_pid,
    assert_left_slurm,
    assert_no_sleepers,
    assert_over,
    frozen,
    only_run,
    script_output,
    start,
    wait_for_ranks,
    write_job,
)
from tests.slurm_sandbox.cluster import Cluster, wait_until
from tests.tiers import variants

pytestmark = pytest.mark.slurm

Note = Callable[[str, object], None]

SHORT_LEASE = "elastic: {lease: 3s}"


def assert_lost(run: Run, *nodes: str) -> None:
    """The run ended for the loss of one of these nodes."""
    result = assert_over(run, "FAILED", 7, killed=NODES)
    assert result["reason"] == "node_lost", result
    assert any(node in result["cause"] for node in nodes), result


@pytest.mark.variant(of="test_a_killed_agent_ends_the_run_at_once_and_leaves_no_worker")
@pytest.mark.mirrored
def test_a_node_without_power_ends_a_run_that_needs_it(slurm_door: Door, slurm: Cluster) -> None:
    run = start(slurm_door, DIES, more=SHORT_LEASE)
    slurm.kill("node3")
    assert_lost(run, "node3")
    slurm.boot("node3")
    slurm.wait_for_job(run.job_id, "FAILED", within_s=90)


@pytest.mark.variant(of="test_a_cut_off_node_kills_its_workers_and_joins_again_when_its_cable_is_healed")
@pytest.mark.mirrored
def test_a_cut_cable_ends_the_run_on_both_sides(slurm_door: Door, slurm: Cluster) -> None:
    run = start(slurm_door, STUBBORN, more=SHORT_LEASE)
    slurm.cut("node2")
    wait_until(lambda: not workers_on(run, "node2"), "the cut-off node has killed its workers", within_s=30)
    assert_lost(run, "node2")
    assert_no_sleepers(slurm)


@pytest.mark.mirrored
@pytest.mark.parametrize(
    "node",
    [
        pytest.param("node1", id="head"),
        *variants("node3", of="test_a_killed_agent_ends_the_run_at_once_and_leaves_no_worker", ids=["member"]),
    ],
)
def test_a_killed_agent_ends_the_run_at_once_and_leaves_no_worker(slurm_door: Door, slurm: Cluster, node: str) -> None:
    run = start(slurm_door, STUBBORN, ranks=3, nodes="3", workers="1")
    os.kill(agent_pid(run, node), signal.SIGKILL)
    wait_until(lambda: not workers_on(run, node), "its workers are dead", within_s=10)
    assert_lost(run, node)
    # Only a living agent finds a grandchild that has thrown the run's variables away, and Slurm where it uses cgroups.
    assert_no_sleepers(slurm, *(other for other in slurm.nodes if other != node))
    for pid in [pid for pid, command in slurm.processes(node).items() if command.startswith("sleep 12345")]:
        with contextlib.suppress(ProcessLookupError):  # Slurm was quicker
            os.kill(pid, signal.SIGKILL)
    slurm.wait_for_job(run.job_id, "FAILED")


@pytest.mark.mirrored
def test_a_step_that_is_killed_whole_has_a_result_from_its_script_at_once(
    slurm_door: Door, slurm: Cluster, record_property: Note
) -> None:
    write_job(slurm_door, DIES, nodes="2", workers="1")
    waiting = slurm_door.start("submit", "job.yaml", "--wait")
    wait_until(slurm.job_ids, "the job is there")
    run = only_run(slurm_door, slurm.job_ids()[0])
    wait_for_ranks(run, 2)
    for node in NODES[:2]:  # an agent that outlived another one for a moment would write the result
        os.kill(agent_pid(run, node), signal.SIGSTOP)
    killed = time.time()
    slurm.run("scancel", "--signal=KILL", f"{run.job_id}.0")
    result = assert_over(run, "UNKNOWN", 7, killed=NODES)
    record_property("result", f"after {Path(run.layout.result).stat().st_mtime - killed:.2f} s")
    assert (result["reason"], result["written_by"], result["attempts"]) == ("no_result", "script", 1)
    assert "(SIGKILL)" in result["cause"]
    assert result["root_cause"]["class"] == "agent_lost"
    output, errors = waiting.communicate(timeout=60)
    assert waiting.returncode == 7, output + errors
    assert result["cause"] in " ".join(slurm_door.run("status", run.layout.root).stdout.split())
    assert result["cause"] in script_output(run)
    assert_left_slurm(slurm, run, "FAILED", "7:0")


@pytest.mark.variant(of="test_a_killed_agent_ends_the_run_at_once_and_leaves_no_worker")
def test_an_agent_that_is_killed_between_attempts_ends_the_run(slurm_door: Door) -> None:
    write_job(slurm_door, "raise SystemExit(3)", more="restart: {backoff: {first: 60s, max: 60s}}")
    run = slurm_door.submit("job.yaml")
    wait_until(lambda: len(list(run.path.glob("attempts/0001/nodes/*.json"))) == 4, "all wait", otherwise=run.story)
    os.kill(agent_pid(run, "node4"), signal.SIGKILL)
    assert_lost(run, "node4")


def test_a_frozen_agent_has_its_workers_killed_by_its_guard_and_leaves_when_it_wakes(
    slurm_door: Door, slurm: Cluster
) -> None:
    run = start(slurm_door, STUBBORN, ranks=3, nodes="3", workers="1", more=SHORT_LEASE)
    agent = agent_pid(run, "node3")
    os.kill(agent, signal.SIGSTOP)
    try:
        wait_until(lambda: not workers_on(run, "node3"), "the guard has killed the workers", within_s=30)
        wait_until(run.is_over, "the others have ended the run", otherwise=run.story)
    finally:
        os.kill(agent, signal.SIGCONT)
    assert_lost(run, "node3")


@pytest.mark.variant(of="test_a_frozen_agent_has_its_workers_killed_by_its_guard_and_leaves_when_it_wakes")
def test_a_frozen_head_of_nodes_that_are_all_needed_ends_the_run_or_gathers_them_again(
    slurm_door: Door, slurm: Cluster
) -> None:
    """It ends the run if it misses the others first, and goes on if its own member has missed it first."""
    run = start(slurm_door, STUBBORN, more=SHORT_LEASE)
    agent = agent_pid(run, "node1")
    os.kill(agent, signal.SIGSTOP)
    try:
        wait_until(
            lambda: not run.processes(), "every worker is dead, on every node", within_s=30, otherwise=run.processes
        )
    finally:
        os.kill(agent, signal.SIGCONT)
    wait_until(lambda: run.is_over() or run.attempts()[-1] == 2, "it goes on or ends", within_s=60, otherwise=run.story)
    if run.is_over():
        assert_lost(run, "node1", "node2", "node3", "node4")
    else:
        run.wait_until_started(2)
        assert {node["node"] for node in run.read(run.layout.world(2))["nodes"]} == set(NODES)
        slurm_door.run("cancel", run.layout.root)


@pytest.mark.variant(of="test_the_batch_host_loses_power_while_it_trains")
@pytest.mark.mirrored
def test_a_lost_batch_host_ends_the_run_for_the_others(slurm_door: Door, slurm: Cluster) -> None:
    run = start(slurm_door, STUBBORN, more=SHORT_LEASE)
    slurm.kill("node1")
    assert_lost(run, "node1")
    assert_no_sleepers(slurm, "node2", "node3", "node4")
    slurm.boot("node1")
    slurm.wait_for_job(run.job_id, "CANCELLED")  # by the agents: without its batch script it does not end by itself


def test_two_workers_killed_together_are_one_restart(slurm_door: Door) -> None:
    run = start(slurm_door, DIES, ranks=4, nodes="2", more="restart: {max_restarts: 2}")
    pids = [run.worker_pid(0), run.worker_pid(3)]
    # Together means that nobody reacts to the first death before the second one.
    with frozen(agent_pid(run, "node1")), frozen(agent_pid(run, "node2")):
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
    wait_for_ranks(run, 4, attempt=2)
    slurm_door.run("cancel", run.job_id)
    result = assert_over(run, "CANCELLED", 10)
    assert (result["attempts"], result["restarts"]) == (2, 1)
    errors = [run.read(str(path)) for path in run.path.glob("attempts/0001/ranks/*/error.json")]
    assert {(error["rank"], error["signal"]) for error in errors} == {(0, "SIGKILL"), (3, "SIGKILL")}
