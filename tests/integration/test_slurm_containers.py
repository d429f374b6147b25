"""Runs whose agents are in an image without Slurm's commands, on the real Slurm."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.integration.conftest import Door
from tests.integration.images import needs_bubblewrap, write_image
from tests.integration.slurm_jobs import (
    COUNTS_SIGNALS,
    WAITS,
    agent_outputs,
    assert_left_slurm,
    assert_over,
    have_told,
    script_output,
    start,
    wait_for_ranks,
    write_job,
)
from tests.integration.test_slurm_survival import is_srun_stopped
from tests.slurm_sandbox.cluster import Cluster, wait_until

pytestmark = [pytest.mark.slurm, needs_bubblewrap]

# Tells what it sees; its first attempt fails on rank 1.
FAILS_ONCE = """
import os, shutil, sys
print("squeue:", shutil.which("squeue", path="/usr/bin:/usr/local/bin:/bin"))
print("variables:", os.environ.get("MADE_BY"), os.environ.get("CROSSES_OVER"), os.environ.get("STAYS_OUTSIDE"))
print("ours:", [name for name in os.environ if name.startswith("HPC_ELASTIC_HOST_")], flush=True)
if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.exit("the first attempt fails")
"""
WAITS_ONCE = (
    """
import os, sys
if os.environ.get("SLURM_RESTART_COUNT", "0") != "0":
    sys.exit(0)
"""
    + WAITS
)


@pytest.fixture(autouse=True)
def folders_of_dead_nodes(slurm: Cluster) -> Iterator[None]:
    """The nodes of the sandbox have this machine's /tmp, where one that lost its power has no chance to clean up."""
    yield
    for path in Path("/tmp").glob("hpc-elastic-????????/environ"):
        with contextlib.suppress(FileNotFoundError):  # of another sandbox, removed by its agent
            if f"SLURM_CONF={slurm.layout.slurm_conf}" in path.read_text().split("\0"):
                shutil.rmtree(path.parent)


def test_a_crash_restarts_workers_in_an_image_that_sees_only_what_it_is_given(slurm_door: Door, slurm: Cluster) -> None:
    image = write_image(slurm_door.folder)
    setup = "setup: [export CROSSES_OVER=yes, export STAYS_OUTSIDE=yes]"
    write_job(slurm_door, FAILS_ONCE, nodes="2", workers="1", more=f"{image}\n{setup}")
    run = slurm_door.submit("job.yaml", wait=True)
    result = assert_over(run, "SUCCEEDED", 0)
    assert (result["attempts"], result["restarts"]) == (2, 1)
    assert run.stdout(2, 0) == "squeue: None\nvariables: image yes None\nours: []\n"
    assert "squeue: None" in slurm_door.run("logs", run.layout.root).stdout
    assert json.loads(slurm_door.run("status", run.layout.root, "--json").stdout)["state"] == "SUCCEEDED"
    assert_left_slurm(slurm, run, "COMPLETED", "0:0")


@pytest.mark.variant(of="test_a_crash_restarts_workers_in_an_image_that_sees_only_what_it_is_given")
def test_slurm_is_asked_outside_of_the_image_and_starts_the_job_again(slurm_door: Door, slurm: Cluster) -> None:
    """A requeue, a node without power and the end by a person, each known by an answer of Slurm or by the agents."""
    write_job(slurm_door, WAITS_ONCE, nodes="{min: 2, max: 3}", workers="1", more=write_image(slurm_door.folder))
    run = slurm_door.submit("job.yaml")
    wait_for_ranks(run, 3)
    slurm.kill("node3")
    wait_for_ranks(run, 2, attempt=2)
    slurm.run("scontrol", "requeue", run.job_id)
    wait_until(lambda: slurm.job(run.job_id).get("Restarts") == "1", "the job is requeued", otherwise=run.story)
    slurm.boot("node3")
    result = assert_over(run, "SUCCEEDED", 0, killed=["node3"])
    assert (result["attempts"], result["restarts"]) == (3, 0)
    unanswered = [line for line in agent_outputs(run).splitlines() if "Slurm does not say" in line]
    assert [line for line in unanswered if "did not answer within" not in line] == []  # a busy Slurm may be late
    assert "the scheduler requeues the job" in agent_outputs(run) or "requeue" in script_output(run)
    assert_left_slurm(slurm, run, "COMPLETED", "0:0")


@pytest.mark.variant(of="test_a_crash_restarts_workers_in_an_image_that_sees_only_what_it_is_given")
@pytest.mark.parametrize("more", ["", "--unshare-pid"])
def test_scancel_of_a_run_in_an_image_leaves_its_final_record(slurm_door: Door, slurm: Cluster, more: str) -> None:
    write_job(slurm_door, WAITS, nodes="2", workers="1", more=write_image(slurm_door.folder, more=more))
    run = slurm_door.submit("job.yaml")
    wait_for_ranks(run, 2)
    slurm.run("scancel", run.job_id)
    result = assert_over(run, "CANCELLED", 10)
    assert (result["written_by"], result["reason"]) == ("node1", "terminated")
    assert "saved" in run.stdout(1, 0)


@pytest.mark.variant(of="test_workers_get_a_users_signal_once_where_slurm_tells_every_process")
def test_a_users_signal_to_every_process_ends_no_image(slurm_door: Door, slurm: Cluster) -> None:
    """The shell outside, with which the step would end, the runtime, the agent and the worker get it."""
    image = write_image(slurm_door.folder)
    run = start(slurm_door, COUNTS_SIGNALS, ranks=2, nodes="2", workers="1", more=image)
    slurm.run("scancel", "--signal=USR1", run.job_id)
    told = partial(have_told, run, "got SIGUSR1, as the workers did", 2)
    wait_until(told, "no agent passes it on", otherwise=run.story)
    for node in ("node1", "node2"):
        lines = [line for line in slurm.processes(node).values() if not line.startswith("srun")]
        assert any("bash -c hpc_elastic_refuse" in line for line in lines), lines
    slurm_door.write("go", "")
    assert_over(run, "SUCCEEDED", 0)
    assert [run.stdout(1, rank).count("got USR1") for rank in (0, 1)] == [1, 1]


@pytest.mark.variant(of="test_a_crash_restarts_workers_in_an_image_that_sees_only_what_it_is_given")
@pytest.mark.parametrize("more", ["", "--unshare-pid"])
def test_the_node_of_the_batch_script_is_lost_and_an_agent_in_an_image_ends_the_job(
    slurm_door: Door, slurm: Cluster, more: str
) -> None:
    image = write_image(slurm_door.folder, more=more)
    script = FAILS_ONCE.partition("if os")[0] + (
        "import time\nprint('waiting', flush=True)\nwhile not os.path.exists('go'):\n    time.sleep(0.1)\n"
    )
    write_job(slurm_door, script, nodes="{min: 2, max: 3}", workers="1", more=image)
    run = slurm_door.submit("job.yaml")
    wait_for_ranks(run, 3)
    with slurm.configured(SlurmdTimeout=300):
        slurm.kill("node1")
        wait_for_ranks(run, 2, attempt=2)
        slurm_door.write("go", "")
        run.wait_until_over()
        slurm.wait_for_job(run.job_id, "CANCELLED", "COMPLETING")  # ended by an agent; node1 has not answered yet
        slurm.boot("node1")
    assert_over(run, "SUCCEEDED", 0, killed=["node1"])


@pytest.mark.variant(of="test_a_crash_restarts_workers_in_an_image_that_sees_only_what_it_is_given")
@pytest.mark.parametrize("more", ["", "--unshare-pid"])
def test_srun_is_held_while_the_container_of_its_node_lives(slurm_door: Door, slurm: Cluster, more: str) -> None:
    write_job(slurm_door, WAITS, nodes="2", workers="1", more=write_image(slurm_door.folder, more=more))
    run = slurm_door.submit("job.yaml")
    wait_for_ranks(run, 2)
    wait_until(lambda: is_srun_stopped(slurm, "node1"), "srun is stopped", otherwise=run.story)
    slurm_door.run("cancel", run.layout.root)
    assert_over(run, "CANCELLED", 10)


@pytest.mark.variant(of="test_a_crash_restarts_workers_in_an_image_that_sees_only_what_it_is_given")
def test_a_runtime_that_is_missing_on_all_nodes_is_named_by_status(slurm_door: Door, slurm: Cluster) -> None:
    write_job(slurm_door, nodes="2", workers="1", more="container: {runtime: apptainer, image: a.sif}")
    run = slurm_door.submit("job.yaml")
    slurm.wait_for_job(run.job_id, "FAILED")
    shown = json.loads(slurm_door.run("status", run.layout.root, "--json", exit_code=None).stdout)
    assert "node1: there is no program apptainer in PATH" in shown["cause"], shown
