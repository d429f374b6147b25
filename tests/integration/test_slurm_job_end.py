"""Jobs on the real Slurm that nobody would end, for their batch script is lost: an agent does, whoever dies as well."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.integration.conftest import Door
from tests.integration.digits_runs import Training
from tests.integration.slurm_jobs import agent_pid
from tests.slurm_sandbox.cluster import Cluster, wait_until

pytestmark = pytest.mark.slurm


def log_of(training: Training, node: str) -> str:
    return Path(training.run.path / "agents" / f"{node}.out").read_text()


@pytest.mark.variant(of="test_the_batch_host_loses_power_while_it_trains")
def test_another_agent_ends_the_job_if_the_one_that_is_to_end_it_dies(slurm_door: Door, slurm: Cluster) -> None:
    training = Training.start(slurm_door)
    slurm.kill("node1")
    training.wait_until_held(2, 3)
    ender = agent_pid(training.run, "node2")
    training.go()
    wait_until(training.run.is_over, "the run is over", otherwise=training.story)
    os.kill(ender, signal.SIGKILL)  # it looks for two seconds whether the script's machine answers
    slurm.wait_for_job(training.run.job_id, "CANCELLED", "COMPLETING")
    assert f"the node of the batch script was lost: ending job {training.run.job_id}" in log_of(training, "node3")
    assert f"sees to the end of job {training.run.job_id}" in log_of(training, "node4")
    assert "still there after" not in log_of(training, "node4"), training.story()
    assert "SUCCEEDED" in slurm_door.run("status", training.run.job_id).stdout


@pytest.mark.variant(of="test_the_batch_host_loses_power_while_it_trains")
def test_an_agent_ends_the_job_of_a_script_whose_machine_was_shut_down_after_its_agent(
    slurm_door: Door, slurm: Cluster
) -> None:
    training = Training.start(slurm_door)
    os.kill(agent_pid(training.run, "node1"), signal.SIGKILL)
    training.wait_until_held(2, 3)
    slurm.kill("node1")
    training.finish(4, 3)
    slurm.wait_for_job(training.run.job_id, "CANCELLED", "COMPLETING", within_s=90)
    assert "SUCCEEDED" in slurm_door.run("status", training.run.job_id).stdout
