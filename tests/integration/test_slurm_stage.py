"""Jobs on the real Slurm whose environment is copied to each node first."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import Door, Run
from tests.integration.images import needs_bubblewrap, write_image
from tests.integration.slurm_jobs import WAITS, agent_outputs, assert_over, events, wait_for_ranks
from tests.integration.test_slurm_containers import WAITS_ONCE
from tests.slurm_sandbox.cluster import Cluster, wait_until

pytestmark = pytest.mark.slurm

JOB = """
nodes: {min: 3, max: 4}
workers_per_node: 1
time: 10m
elastic: {join_timeout: 60s}
requeue: {max: 1, on: [time_limit]}
setup: ['export DISK={disk}']
stage: {source: environment, target: '${DISK}/$$', timeout: 30s}
"""
SCRIPT = """
import os, sys
print(sys.executable, os.environ["HPC_ELASTIC_STAGE"], sorted(n for n in os.environ if "STAGE_" in n), flush=True)
"""
# The copy of node 2, which is node3, goes to a disk that is too small.
PYTHON = """#!/bin/bash
case "$SLURM_NODEID $*" in
"2 "*hpc_elastic.agent.stage*) exec unshare -m "$0.full" "$DISK" {python} "$@" ;;
*) exec {python} "$@" ;;
esac
"""
FULL = """#!/bin/bash
mount -t tmpfs -o size=64k full "$1"
shift
exec "$@"
"""


def write_job(door: Door, script: str = SCRIPT, *, more: str = "") -> Path:
    """Write a job whose environment is staged below a folder, which is returned; all nodes of a sandbox share it."""
    environment, disk = door.folder / "environment", door.folder / "disk"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin" / "python").symlink_to(sys.executable)
    (environment / "filling").write_bytes(os.urandom(200_000))
    disk.mkdir()
    door.write("train.py", script)
    door.write("job.yaml", JOB.replace("{disk}", str(disk)) + more + "\nentrypoint: {script: train.py}\n")
    return disk


def staged_on(run: Run) -> dict[str, str]:
    return {event["metadata"]["node"]: event["message"] for event in events(run) if event["name"] == "node.staged"}


def test_a_node_whose_disk_is_too_small_for_the_copy_is_left_out_and_the_next_job_finds_the_copies(
    slurm_door: Door, slurm: Cluster
) -> None:
    disk = write_job(slurm_door, more="python: ./python")
    slurm_door.write("python", PYTHON.format(python=sys.executable)).chmod(0o755)
    slurm_door.write("python.full", FULL).chmod(0o755)
    run = slurm_door.submit("job.yaml", "--set", "start=spawn")
    result = assert_over(run, "SUCCEEDED", 0)
    assert result["nodes"] == ["node1", "node2", "node4"], run.story()
    (reason,) = [event["metadata"]["reason"] for event in events(run) if event["name"] == "node.unhealthy"]
    assert reason.startswith("stage: ")
    assert "No space left on device" in reason
    assert "node3 is unhealthy: stage: " in agent_outputs(run)
    (copy,) = (disk / "$").glob("environment-*")
    assert run.stdout(1, 0) == f"{sys.executable} {copy} []\n"
    told = staged_on(run)
    assert told.keys() == {"node1", "node2", "node4"}
    assert sorted(line.split()[0] for line in told.values()) == ["copied", "found", "found"]

    later = slurm_door.submit("job.yaml", "--set", "start=spawn", "--set", "python=${HPC_ELASTIC_STAGE}/bin/python")
    assert_over(later, "SUCCEEDED", 0)
    assert later.stdout(1, 0).startswith(f"{copy}/bin/python {copy}")
    assert [line.split()[0] for line in staged_on(later).values()] == ["found"] * 4


@pytest.mark.variant(
    of="test_a_node_whose_disk_is_too_small_for_the_copy_is_left_out_and_the_next_job_finds_the_copies"
)
@needs_bubblewrap
def test_a_requeue_in_an_image_finds_the_copy(slurm_door: Door, slurm: Cluster) -> None:
    image = write_image(slurm_door.folder)
    write_job(slurm_door, WAITS_ONCE, more=image)
    run = slurm_door.submit("job.yaml", "--set", "start=spawn")
    wait_for_ranks(run, 4)
    slurm.run("scontrol", "requeue", run.job_id)
    wait_until(lambda: slurm.job(run.job_id).get("Restarts") == "1", "the job is requeued", otherwise=run.story)
    assert_over(run, "SUCCEEDED", 0)
    lines = [event["message"].split()[0] for event in events(run) if event["name"] == "node.staged"]
    assert sorted(lines) == ["copied", *["found"] * 7]


@pytest.mark.variant(
    of="test_a_node_whose_disk_is_too_small_for_the_copy_is_left_out_and_the_next_job_finds_the_copies"
)
def test_a_source_that_is_missing_ends_the_run_and_names_the_nodes(slurm_door: Door, slurm: Cluster) -> None:
    write_job(slurm_door, WAITS)
    run = slurm_door.submit("job.yaml", "--set", "start=spawn", "--set", "stage.source=none")
    result = assert_over(run, "FAILED", 6)
    assert "node1 is unhealthy: stage: " in result["cause"]
    assert f"cannot read {slurm_door.folder}/none: No such file or directory" in result["cause"]
    assert json.loads(slurm_door.run("status", run.layout.root, "--json").stdout)["cause"] == result["cause"]
