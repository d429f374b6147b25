"""Nodes that have no commands of Slurm, only its daemon: nobody there can ask about the job, or end it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import Door
from tests.integration.slurm_jobs import WAITS, assert_over, start
from tests.slurm_sandbox.cluster import Cluster, wait_until

pytestmark = pytest.mark.slurm

COMMANDS = ("squeue", "scontrol", "scancel", "sacct", "sinfo")
# Waits in its first allocation, and has nothing to do in the next.
WAITS_ONCE = (
    """
import os, sys
if os.environ.get("SLURM_RESTART_COUNT", "0") != "0":
    sys.exit(0)
"""
    + WAITS
)


@pytest.fixture
def no_commands(slurm: Cluster, tmp_path: Path) -> Iterator[None]:
    """No node can run a command of Slurm but srun, which the batch script needs."""
    refusing = tmp_path / "no-such-command"
    refusing.write_text("#!/bin/sh\nexit 127\n")
    refusing.chmod(0o755)
    with contextlib.ExitStack() as mounts:
        for command in COMMANDS:
            path = shutil.which(command, path=slurm.environment.get("PATH", os.defpath))
            assert path is not None, command
            for node in slurm.nodes:
                mounts.enter_context(slurm.mounted(node, refusing, os.path.realpath(path)))
        yield


@pytest.mark.variant(of="test_a_requeue_claims_the_next_allocation_without_asking_the_scheduler")
@pytest.mark.mirrored
def test_a_requeue_goes_on_in_the_next_allocation(slurm_door: Door, slurm: Cluster, no_commands: None) -> None:
    run = start(slurm_door, WAITS_ONCE, ranks=4, workers="1")
    slurm.run("scontrol", "requeue", run.job_id)
    wait_until(lambda: slurm.job(run.job_id).get("Restarts") == "1", "the job is requeued", otherwise=run.story)
    assert_over(run, "SUCCEEDED", 0)
    slurm.wait_for_job(run.job_id, "COMPLETED")


@pytest.mark.variant(of="test_one_look_settles_a_run_where_nothing_was_written_for_long")
def test_a_cancellation_is_found_by_status(slurm_door: Door, slurm: Cluster, no_commands: None) -> None:
    run = start(slurm_door, WAITS, ranks=4, workers="1")
    slurm.run("scancel", run.job_id)
    slurm.wait_for_job(run.job_id, "CANCELLED")
    wait_until(  # who looks at it makes the result when the job has been over for a minute (observe.diagnosis.SETTLE_S)
        lambda: json.loads(slurm_door.run("status", run.layout.root, "--json").stdout)["state"] == "CANCELLED",
        "status says that the run is cancelled",
        within_s=120,
        otherwise=run.story,
    )
    assert run.result()["state"] == "CANCELLED"
    assert run.result()["written_by"] == "login"
    run.assert_nothing_left(within_s=40)


def test_a_run_ends_well(slurm_door: Door, no_commands: None) -> None:
    run = start(slurm_door, WAITS_ONCE, ranks=2, nodes="2", workers="1")
    slurm_door.run("cancel", run.layout.root)
    assert_over(run, "CANCELLED", 10)


def test_the_commands_are_gone_on_the_nodes_alone(slurm: Cluster, no_commands: None) -> None:
    assert slurm.run("squeue", check=False).returncode == 0
    done = slurm.run(*slurm.command_on("node1", ["squeue"]), check=False)
    assert done.returncode == 127
