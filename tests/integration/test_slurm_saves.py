"""What a user's saves are promised, on the real Slurm: together, not cut short, and no requeue of what cannot go on."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.integration.conftest import Door
from tests.integration.digits_runs import wait_until_dead, workers_on
from tests.integration.slurm_jobs import agent_pid, assert_over, events, write_job
from tests.integration.test_local_notices import SAVES, SAVES_LONG, give_notice
from tests.integration.test_slurm_requeue import requeues_of
from tests.slurm_sandbox.cluster import Cluster, wait_until
from tests.tiers import variants

pytestmark = pytest.mark.slurm

CRASHES = """
import os, sys, time
from hpc_elastic.worker import heartbeat
heartbeat(7)
print("step 7", flush=True)
time.sleep(0.2 if os.environ["RANK"] == "1" else 600)
raise ValueError("bad batch 17")
"""


@pytest.mark.variant(of="test_all_ranks_save_together_and_the_run_stops_at_once")
@pytest.mark.parametrize("number", [0, *variants(1, 2, 3, of="test_all_ranks_save_together_and_the_run_stops_at_once")])
def test_eight_ranks_on_four_nodes_save_at_the_same_step(slurm_door: Door, slurm: Cluster, number: int) -> None:
    write_job(slurm_door, SAVES.replace("sys.argv[1]", str(number)), nodes="4", workers="2")
    run = slurm_door.submit("job.yaml")
    run.wait_for_output("ready")
    give_notice(run)
    result = assert_over(run, "CANCELLED", 10)
    assert (result["reason"], result["restarts"]) == ("notice_taken", 0), run.story()
    said = [run.stdout(1, rank).splitlines() for rank in range(8)]
    assert said[0][-1] == "saved for operator alike", said
    assert said == [said[0]] * 8


@pytest.mark.variant(of="test_a_rank_that_saves_is_not_killed_by_its_neighbours_crash")
def test_a_rank_that_saves_for_10_s_is_not_killed_by_a_crash_on_another_node(slurm_door: Door, slurm: Cluster) -> None:
    script = SAVES_LONG.replace("float(sys.argv[1])", "10")
    signals = "signals: {grace: 20s, restart_grace: 1s, lead: 40s}"
    write_job(slurm_door, script, nodes="2", workers="1", more=signals)
    run = slurm_door.submit("job.yaml")
    result = assert_over(run, "SUCCEEDED", 0)
    assert (result["attempts"], result["restarts"]) == (2, 1), run.story()
    assert run.stdout(1, 0) == "saved\n"


SAVES_BESIDE = """
import os, sys, time
from hpc_elastic.worker import saving
if os.environ["HPC_ELASTIC_ATTEMPT"] != "1":
    sys.exit(0)
if os.environ["RANK"] == "0":
    with saving():
        print("saves", flush=True)
        time.sleep(10)
        print("saved", flush=True)
print("waits", flush=True)
time.sleep(600)
"""


@pytest.mark.variant(of="test_a_rank_that_saves_is_not_killed_by_its_neighbours_crash")
def test_a_rank_that_saves_for_10_s_is_not_killed_when_an_agent_dies_on_another_node(
    slurm_door: Door, slurm: Cluster
) -> None:
    signals = "signals: {grace: 20s, restart_grace: 1s, lead: 40s}"
    write_job(slurm_door, SAVES_BESIDE, nodes="{min: 2, max: 3}", workers="1", more=signals)
    run = slurm_door.submit("job.yaml")
    run.wait_for_output("saves")
    wait_until(lambda: [run.stdout(1, rank) for rank in (1, 2)] == ["waits\n"] * 2, "the others wait")
    killed = time.monotonic()
    os.kill(agent_pid(run, "node3"), signal.SIGKILL)
    wait_until_dead(workers_on(run, "node2"), within_s=5)  # who does not save has no time
    assert run.stdout(1, 0) == "saves\n"
    result = assert_over(run, "SUCCEEDED", 0)
    assert time.monotonic() - killed > 5
    assert run.stdout(1, 0).splitlines()[:2] == ["saves", "saved"], run.story()
    assert (result["attempts"], result["restarts"], result["nodes"]) == (2, 0, ["node1", "node2"]), run.story()
    assert run.read(run.layout.claim(2))["spend"]["node_losses"] == 1


@pytest.mark.variant(of="test_a_second_loss_in_silence_fences_ranks_that_save")
def test_a_rank_that_saves_is_killed_when_another_node_falls_silent(slurm_door: Door, slurm: Cluster) -> None:
    more = "signals: {grace: 20s, restart_grace: 1s, lead: 40s}\nelastic: {lease: 3s}"
    script = SAVES_BESIDE.replace("time.sleep(10)", "time.sleep(60)")
    write_job(slurm_door, script, nodes="{min: 2, max: 3}", workers="1", more=more)
    run = slurm_door.submit("job.yaml")
    run.wait_for_output("saves")
    with slurm.configured(SlurmdTimeout=300):
        slurm.cut("node3")
        result = assert_over(run, "SUCCEEDED", 0, killed=("node3",))
    assert run.stdout(1, 0) == "saves\n", run.story()
    assert (result["attempts"], result["nodes"]) == (2, ["node1", "node2"]), run.story()


def test_a_crash_loop_ends_for_good_and_is_not_started_again(slurm_door: Door, slurm: Cluster) -> None:
    more = (
        "restart: {max_restarts: 10, no_progress_limit: 3}\nrequeue: {on: [node_loss, preempted, time_limit], max: 5}"
    )
    write_job(slurm_door, CRASHES, nodes="2", workers="1", more=more)
    run = slurm_door.submit("job.yaml", wait=True, exit_code=8)
    result = assert_over(run, "FAILED", 8)
    assert (result["reason"], result["attempts"]) == ("no_progress", 3), run.story()
    assert "ValueError: bad batch 17" in result["cause"]
    assert "ValueError: bad batch 17" in " ".join(slurm_door.run("status", str(run.path)).stdout.split())
    assert requeues_of(run) == []
    assert slurm.job(run.job_id)["Restarts"] == "0"
    assert not [event for event in events(run) if event["name"] == "run.stopping"]
