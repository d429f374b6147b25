"""Faults around the agents on the real Slurm: its controller away, a file system that stalls, clocks that are wrong."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable

import pytest

from tests.integration.conftest import Door
from tests.integration.digits_runs import Training, is_alive, wait_until_dead, workers_on
from tests.integration.slurm_jobs import agent_pid, events
from tests.slurm_sandbox.cluster import Cluster, wait_until
from tests.slurm_sandbox.remote_folder import RemoteFolder, why_no_remote_folder

pytestmark = pytest.mark.slurm

Note = Callable[[str, object], None]
HELD = "sbatch: {hold: true}"


@pytest.mark.variant(of="test_submit_says_so_if_no_controller_answers")
def test_the_controller_restarts_and_nobody_notices(slurm_door: Door, slurm: Cluster) -> None:
    training = Training.start(slurm_door)
    slurm.end_slurmctld()  # killed before it writes down that the job runs, it starts that again, and drains its nodes
    slurm.kill("controller")
    slurm.boot("controller")
    wait_until(lambda: set(slurm.node_states().values()) == {"mixed"}, "Slurm is back", otherwise=slurm.controller_log)
    training.finish(4)
    training.assert_completed(slurm)


@pytest.mark.variant(of="test_a_node_that_is_back_before_slurm_has_given_it_up_ends_nobodys_run")
def test_a_node_is_lost_while_the_controller_is_away(slurm_door: Door, slurm: Cluster, record_property: Note) -> None:
    training = Training.start(slurm_door)
    slurm.end_slurmctld()
    slurm.kill("controller")
    fault = time.time()
    slurm.kill("node3")
    training.wait_until_held(2, 3)
    record_property("power off, no controller", training.times_since(fault, 2))
    training.go()
    training.run.wait_until_over()
    slurm.boot("controller")  # the batch script has exited; what is left of the job ends when Slurm hears of that
    slurm.boot("node3")
    training.finish(4, 3)
    training.assert_completed(slurm)


@pytest.mark.variant(of="test_a_stalled_file_system_costs_no_lease")
def test_a_run_directory_that_stalls_for_20_s_delays_claims_and_no_lease(
    slurm_door: Door, slurm: Cluster, record_property: Note
) -> None:
    if reason := why_no_remote_folder():
        pytest.skip(reason)
    training = Training.submit(slurm_door, more=HELD)
    run = training.run
    with RemoteFolder.mounted(slurm, run.path, slurm.nodes) as folder:
        slurm.run("scontrol", "release", run.job_id)
        training.wait_until_held(1, 4)
        workers, agents = workers_on(run, *slurm.nodes), [agent_pid(run, node) for node in slurm.nodes]
        stall = time.time()
        with folder.stalled():
            wait_until(lambda: time.time() > stall + 15, "fifteen seconds are over: five leases")
            assert all(is_alive(pid) for pid in [*workers, *agents])
            os.kill(agents[2], signal.SIGKILL)
            killed = time.monotonic()
            wait_until_dead(workers, within_s=4)
            record_property("all fenced without the disk after", f"{time.monotonic() - killed:.2f} s")
            wait_until(lambda: time.time() > stall + 20, "twenty seconds are over")
            assert run.attempts() == [1]
        training.wait_until_held(2, 3)
        record_property("stall", training.times_since(stall + 20, 2))
        result = training.finish(4, 3)
        assert result["restarts"] == 0
        training.assert_completed(slurm)


# Every clock of Python but the monotonic one, before anything else is imported.
WRONG_CLOCK = """
import os, time

hours = {"node1": 1, "node2": -1}.get(os.environ.get("SLURMD_NODENAME"), 0)
right, right_ns = time.time, time.time_ns
time.time = lambda: right() + hours * 3600
time.time_ns = lambda: right_ns() + hours * 3600 * 10**9
"""


@pytest.mark.variant(of="test_the_batch_host_loses_power_while_it_trains")
def test_clocks_an_hour_apart_change_nothing(slurm_door: Door, slurm: Cluster, record_property: Note) -> None:
    clocks = slurm_door.folder / "clocks"
    clocks.mkdir()
    (clocks / "sitecustomize.py").write_text(WRONG_CLOCK)
    python = slurm_door.write("python", f'#!/bin/sh\nPYTHONPATH={clocks} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    training = Training.start(slurm_door, more=f"python: {python}")
    assert [hours_ahead(training, node) for node in slurm.nodes] == [1, -1, 0, 0]
    fault = time.time()
    slurm.kill("node1")
    training.wait_until_held(2, 3)
    record_property("batch host off, clocks apart", training.times_since(fault, 2))
    training.finish(4, 3)
    slurm.wait_for_job(training.run.job_id, "CANCELLED", "COMPLETING")


def hours_ahead(training: Training, node: str) -> int:
    """How far the clock of a node's agent is ahead, by what it notes and when that is written."""
    path = training.run.path / "nodes" / node / "events.jsonl"
    noted = max(int(event["time_ns"]) for event in events(training.run) if event["node"] == node)
    return round((noted / 1e9 - path.stat().st_mtime) / 3600)
