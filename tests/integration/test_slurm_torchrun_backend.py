"""Stock torchruns in a step of the real Slurm, whose agents meet by the backend hpc-elastic."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.torchruns import LEASE_S, Step, is_alive, torchrun, write_metadata
from tests.slurm_sandbox.cluster import Cluster, wait_until
from tests.without_torch import hide_compiler

pytestmark = pytest.mark.slurm

NODES = ["node1", "node2", "node3", "node4"]
SRUN = "srun --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0 --wait=0 --output=task-%N.out"

Start = Callable[..., "Job"]
Note = Callable[[str, object], None]


class Job(Step):
    """A batch job with one step, and how it ends."""

    def __init__(self, slurm: Cluster, folder: Path, command: list[str], nodes: int) -> None:
        script = folder / "job.sh"
        script.write_text(f"#!/bin/bash\n{SRUN} {' '.join(command)}\n")
        options = [f"--nodes={nodes}", "--no-kill", "--time=10", f"--chdir={folder}", "--output=job.out"]
        self.slurm = slurm
        self.job_id = slurm.submit(*options, "--export=ALL", str(script))
        super().__init__(folder, f"torchrun-{self.job_id}-0")

    def torchrun_of(self, rank: int) -> int:
        """The process of a rank's torchrun, the parent of its workers."""
        stat = Path(f"/proc/{self.worker_pid(rank)}/stat").read_text()
        return int(stat.rpartition(")")[2].split()[1])

    def wait_until_completed(self) -> None:
        assert self.wait_for_result()["state"] == "SUCCEEDED", self.story()
        self.slurm.wait_for_job(self.job_id, "COMPLETED")
        self.assert_records_valid()
        self.assert_nothing_left()


@pytest.fixture
def start(slurm: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts torchruns, by default four; whatever a test leaves is cancelled."""
    jobs = []
    path = hide_compiler({"PYTHONPATH": str(write_metadata(folder))})["PYTHONPATH"]
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("TMPDIR", str(folder))  # where a killed torchrun leaves the folder of its logs

    def start_job(nnodes: str, *arguments: str, max_restarts: int = 3, nodes: int = 4) -> Job:
        jobs.append(Job(slurm, folder, torchrun(nnodes, *arguments, max_restarts=max_restarts), nodes))
        return jobs[-1]

    yield start_job
    for job in jobs:
        slurm.run("scancel", job.job_id, check=False)


@pytest.mark.variant(of="test_a_crash_of_one_worker_restarts_all_at_a_fresh_store_and_they_finish")
def test_a_crash_restarts_all_and_the_job_completes(start: Start, record_property: Note) -> None:
    job = start("3:4", "--gloo")
    first = job.wait_for(1, 4)
    assert job.nodes(1) == NODES
    fault = time.monotonic()
    job.fail(1, 2)
    second = job.wait_for(2, 4)
    record_property("crash", f"all at work again after {time.monotonic() - fault:.1f} s")
    assert [one["total"] for one in second] == [4.0] * 4
    assert first[0]["MASTER_PORT"] != second[0]["MASTER_PORT"]
    job.finish()
    job.wait_until_completed()
    assert (job.result()["attempts"], job.result()["restarts"]) == (2, 1)


@pytest.mark.variant(of="test_a_crash_of_one_worker_restarts_all_at_a_fresh_store_and_they_finish")
@pytest.mark.mirrored
def test_the_others_go_on_without_a_torchrun_that_was_killed(start: Start, record_property: Note) -> None:
    job = start("3:4", max_restarts=0)
    job.wait_for(1, 4)
    worker, agent = job.worker_pid(2), job.torchrun_of(2)
    fault = time.monotonic()
    os.kill(agent, signal.SIGKILL)
    job.wait_for(2, 3)
    record_property("killed torchrun", f"the others at work again after {time.monotonic() - fault:.1f} s")
    assert not is_alive(worker)
    assert job.nodes(2) == ["node1", "node2", "node4"]
    job.finish()
    assert job.wait_for_result()["state"] == "SUCCEEDED"
    job.slurm.wait_for_job(job.job_id, "FAILED")  # srun's exit code is the killed one's
    job.assert_nothing_left()


@pytest.mark.variant(of="test_a_crash_of_one_worker_restarts_all_at_a_fresh_store_and_they_finish")
def test_the_loss_of_the_first_node_moves_store_and_head_and_spends_no_restart(
    start: Start, slurm: Cluster, record_property: Note
) -> None:
    job = start("2:4", "--gloo", max_restarts=0)
    before = job.wait_for(1, 4)
    fault = time.monotonic()
    slurm.kill("node1")  # of the batch script, of srun, of rank 0
    after = job.wait_for(2, 3)
    record_property("first node off", f"the others at work again after {time.monotonic() - fault:.1f} s")
    assert job.nodes(2) == NODES[1:]
    assert (before[0]["MASTER_ADDR"], after[0]["MASTER_ADDR"]) == (
        slurm.layout.address("node1"),
        slurm.layout.address("node2"),
    )
    assert [one["total"] for one in after] == [3.0] * 3
    job.finish()
    assert job.wait_for_result()["state"] == "SUCCEEDED"
    slurm.boot("node1")
    slurm.run("scancel", job.job_id)
    job.assert_nothing_left()


def test_a_cancelled_job_leaves_nothing(start: Start, slurm: Cluster) -> None:
    job = start("2", nodes=2)
    job.wait_for(1, 2)
    slurm.run("scancel", job.job_id)
    slurm.wait_for_job(job.job_id, "CANCELLED")
    job.assert_nothing_left()


@pytest.mark.variant(of="test_a_crash_of_one_worker_restarts_all_at_a_fresh_store_and_they_finish")
def test_a_cut_off_node_kills_its_workers_and_is_taken_in_again_when_it_is_back(
    start: Start, slurm: Cluster, record_property: Note
) -> None:
    job = start("3:4")
    job.wait_for(1, 4)
    worker = job.worker_pid(1)
    with slurm.configured(SlurmdTimeout=60):  # or Slurm gives the node up, and its torchrun with it
        fault = time.monotonic()
        slurm.cut("node2")
        wait_until(lambda: not is_alive(worker), "the worker there is dead", within_s=LEASE_S + 7)
        record_property("cut off worker dead", f"after {time.monotonic() - fault:.1f} s")
        job.wait_for(2, 3)
        record_property("cut off", f"the others at work again after {time.monotonic() - fault:.1f} s")
        slurm.heal("node2")
        grown = job.wait_for_growth(4, after=2)
        assert [one["HPC_ELASTIC_NODE"] for one in job.told(grown)] == ["node1", "node3", "node4", "node2"]
        job.finish()
        job.wait_until_completed()
