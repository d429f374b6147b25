"""A Slurm whose jobs' steps are managed on their first node (SlurmctldParameters=enable_stepmgr, since 24.05)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import Door
from tests.integration.slurm_jobs import WAITS, assert_over, start, write_job
from tests.slurm_sandbox.cluster import Cluster, wait_until
from tests.slurm_sandbox.versions import why_impossible
from tests.tiers import variants

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("stepmgr")]

CRASHES = """
import os, sys
if os.environ["HPC_ELASTIC_ATTEMPT"] == "1" and os.environ["RANK"] == "1":
    sys.exit(3)
print("done")
"""
# Ends when another allocation, or a world without the lost node, runs it.
GOES_ON = (
    """
import os, sys
if os.environ.get("SLURM_RESTART_COUNT", "0") != "0" or os.environ["WORLD_SIZE"] == "3":
    sys.exit(0)
"""
    + WAITS
)


@pytest.fixture(scope="module", params=["24.11"])
def version(request: pytest.FixtureRequest) -> str:
    """The Slurm that these tests boot, whatever `--slurm` names."""
    return str(request.param)


@pytest.fixture(scope="module")
def managed_session(version: str) -> Iterator[Cluster]:
    """A Slurm with 4 nodes whose jobs have a step manager each."""
    if reason := why_impossible(version):
        pytest.skip(reason)
    settings = {"SlurmctldParameters": "enable_stepmgr", "PrologFlags": "contain"}
    cluster = Cluster.start(4, owner=os.getpid(), version=version, settings=settings)
    yield cluster
    cluster.down()


@pytest.fixture
def managed(managed_session: Cluster) -> Iterator[Cluster]:
    """That Slurm, all nodes idle."""
    yield managed_session
    managed_session.leftovers(within_s=15)


@pytest.fixture
def managed_door(managed: Cluster, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Door:
    """The command on its login node."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Door(folder, {**managed.environment, "XDG_STATE_HOME": str(tmp_path / "state")})


def test_a_crash_is_followed_by_a_restart(managed_door: Door, managed: Cluster) -> None:
    write_job(managed_door, CRASHES, nodes="2", workers="1")
    run = managed_door.submit("job.yaml", wait=True)
    assert run.attempts() == [1, 2]
    assert "StepMgrEnabled=Yes" in managed.run("scontrol", "show", "job", run.job_id).stdout


@pytest.mark.variant(of="test_a_requeued_job_goes_on_in_the_next_allocation")
def test_a_requeued_run_goes_on(managed_door: Door, managed: Cluster) -> None:
    run = start(managed_door, GOES_ON, ranks=4, workers="1")
    managed.run("scontrol", "requeue", run.job_id)
    assert_over(run, "SUCCEEDED", 0)
    managed.wait_for_job(run.job_id, "COMPLETED")


@pytest.mark.parametrize(
    "node",
    [
        pytest.param("node1", id="batch host and step manager"),
        *variants("node3", of="test_a_lost_node_is_left_out", ids=["member"]),
    ],
)
def test_a_lost_node_is_left_out(managed_door: Door, managed: Cluster, node: str) -> None:
    more = "elastic: {lease: 3s}"
    run = start(managed_door, GOES_ON, ranks=4, workers="1", nodes="{min: 3, max: 4}", more=more)
    fault = time.monotonic()
    managed.kill(node)
    wait_until(lambda: len(run.attempts()) == 2, "the others go on", within_s=30, otherwise=run.story)
    print(f"{node} lost: the others go on after {time.monotonic() - fault:.2f} s")
    assert_over(run, "SUCCEEDED", 0, killed=[node])
    managed.boot(node)
    wait_until(lambda: run.job_id not in managed.job_ids(), "the job has left the queue", within_s=120)
