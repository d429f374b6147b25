"""What Slurm says of a silent node spares a part of a long lease, and never more than that."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.integration.conftest import Door
from tests.integration.slurm_jobs import start
from tests.slurm_sandbox.cluster import Cluster, wait_until

LEASE_S = 30.0


@pytest.mark.variant(of="test_a_node_that_is_set_down_is_dead_for_its_job_and_no_other_is")
@pytest.mark.mirrored
def test_a_node_that_slurm_has_set_down_is_not_waited_for_to_the_end_of_a_long_lease(
    slurm_door: Door, slurm: Cluster
) -> None:
    job = f"elastic: {{lease: {LEASE_S:g}s}}\nsignals: {{grace: 2s, restart_grace: 1s}}"
    run = start(slurm_door, nodes="{min: 2, max: 3}", workers="1", ranks=3, more=job)
    slurm.cut("node3")
    began = time.monotonic()
    slurm.run("scontrol", "update", "NodeName=node3", "State=DOWN", "Reason=for a test")
    wait_until(lambda: Path(run.layout.claim(2)).exists(), "there is a second attempt", otherwise=run.story)
    took = time.monotonic() - began
    assert "node3 was lost: the scheduler has taken it out of the job" in run.read(run.layout.claim(2))["reason"]
    # 2/3 of a lease after the last beat, which came up to a sixth of a lease before the cut; not after a whole one.
    assert LEASE_S / 2 < took < LEASE_S * 5 / 6, took
    slurm_door.run("cancel", run.job_id)
    assert run.wait_until_over()["state"] == "CANCELLED"
