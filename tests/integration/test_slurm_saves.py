"""What a user's saves are promised, on the real Slurm: together, not cut short, and no requeue of what cannot go on."""

from __future__ import annotations

import pytest

from tests.integration.conftest import Door
from tests.integration.slurm_jobs import assert_over, events, write_job
from tests.integration.test_local_notices import SAVES, SAVES_LONG, give_notice
from tests.integration.test_slurm_requeue import requeues_of
from tests.slurm_sandbox.cluster import Cluster
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


@pytest.mark.parametrize("time", [0, *variants(1, 2, 3, of="test_eight_ranks_on_four_nodes_save_at_the_same_step")])
def test_eight_ranks_on_four_nodes_save_at_the_same_step(slurm_door: Door, slurm: Cluster, time: int) -> None:
    write_job(slurm_door, SAVES.replace("sys.argv[1]", str(time)), nodes="4", workers="2")
    run = slurm_door.submit("job.yaml")
    run.wait_for_output("ready")
    give_notice(run)
    result = assert_over(run, "CANCELLED", 10)
    assert (result["reason"], result["restarts"]) == ("notice_taken", 0), run.story()
    said = [run.stdout(1, rank).splitlines() for rank in range(8)]
    assert said[0][-1] == "saved for operator alike", said
    assert said == [said[0]] * 8


def test_a_rank_that_saves_for_10_s_is_not_killed_by_a_crash_on_another_node(slurm_door: Door, slurm: Cluster) -> None:
    script = SAVES_LONG.replace("float(sys.argv[1])", "10")
    signals = "signals: {grace: 20s, restart_grace: 1s, lead: 40s}"
    write_job(slurm_door, script, nodes="2", workers="1", more=signals)
    run = slurm_door.submit("job.yaml")
    result = assert_over(run, "SUCCEEDED", 0)
    assert (result["attempts"], result["restarts"]) == (2, 1), run.story()
    assert run.stdout(1, 0) == "saved\n"


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
