"""A script that is edited while its job waits to start again, on the real Slurm."""

from __future__ import annotations

import json

import pytest

from tests.integration.conftest import Door
from tests.integration.slurm_jobs import WAITS, assert_over, script_output, start
from tests.slurm_sandbox.cluster import Cluster, wait_until

pytestmark = pytest.mark.slurm


@pytest.mark.variant(of="test_a_script_that_has_changed_since_the_start_before_is_told_once_and_recorded")
def test_who_edits_a_script_while_its_job_waits_is_told_at_the_requeue(slurm_door: Door, slurm: Cluster) -> None:
    run = start(slurm_door, WAITS, ranks=2, nodes="2", workers="1")
    slurm_door.write("train.py", "print('edited')\n")
    slurm.run("scontrol", "requeue", run.job_id)
    wait_until(lambda: slurm.job(run.job_id).get("Restarts") == "1", "the job is requeued", otherwise=run.story)
    assert_over(run, "SUCCEEDED", 0)
    assert "train.py has changed since the job's last start" in script_output(run)
    said = "train.py: not the same in allocation 2 as in the one before"
    assert said in slurm_door.run("status", run.layout.root).stdout
    assert said in " ".join(slurm_door.run("explain", run.layout.root).stdout.split())
    assert json.loads(slurm_door.run("status", run.layout.root, "--json").stdout)["changed_scripts"] == ["train.py"]
