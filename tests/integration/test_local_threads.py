"""How the workers of the local backend share this machine's cores: what torch says in each of them."""

from __future__ import annotations

import os

import pytest

from hpc_elastic.agent.node.cpus import cores_of_this_process
from tests.integration.arrays import submit
from tests.integration.conftest import Door
from tests.tiers import variants

pytestmark = pytest.mark.local

SAYS = """
import os, torch
print("threads", torch.get_num_threads(), "OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS"), flush=True)
"""


def write_job(door: Door, more: str) -> None:
    door.environ.pop("OMP_NUM_THREADS", None)
    door.write("train.py", SAYS)
    door.write("job.yaml", f"name: probe\nsite: local\ntime: 10m\nentrypoint: {{script: train.py}}\n{more}\n")


def said(threads: int) -> str:
    return f"threads {threads} OMP_NUM_THREADS {threads}\n"


@pytest.mark.parametrize("start", ["fork", *variants("spawn", of="test_workers_of_all_nodes_share_the_cores")])
def test_workers_of_all_nodes_share_the_cores(door: Door, start: str) -> None:
    write_job(door, f"nodes: 2\nworkers_per_node: 1\nstart: {start}")
    run = door.submit("job.yaml", wait=True)
    assert run.result()["state"] == "SUCCEEDED", run.story()
    share = max(1, cores_of_this_process() // 2)
    assert [run.stdout(1, rank) for rank in range(2)] == [said(share)] * 2


@pytest.mark.variant(of="test_workers_of_all_nodes_share_the_cores")
def test_the_submitters_number_of_threads_wins(door: Door) -> None:
    write_job(door, "nodes: 2\nworkers_per_node: 1")
    all_cores = cores_of_this_process()
    door.environ["OMP_NUM_THREADS"] = str(all_cores)
    run = door.submit("job.yaml", wait=True)
    assert [run.stdout(1, rank) for rank in range(2)] == [said(all_cores)] * 2


@pytest.mark.variant(of="test_workers_of_all_nodes_share_the_cores")
def test_only_the_cpus_that_the_submitter_may_use_are_shared(door: Door) -> None:
    one = min(os.sched_getaffinity(0))
    write_job(door, f"nodes: 2\nworkers_per_node: 1\nsetup: ['taskset --pid --cpu-list {one} $$ >/dev/null']")
    run = door.submit("job.yaml", wait=True)
    assert [run.stdout(1, rank) for rank in range(2)] == [said(1)] * 2


@pytest.mark.variant(of="test_workers_of_all_nodes_share_the_cores")
def test_runs_of_an_array_share_with_those_beside_them(door: Door) -> None:
    write_job(door, "nodes: 1\nworkers_per_node: 1\nenv: {LR: '${lr}', SEED: '${seed}'}")
    array = submit(door, "--wait", "--array-limit", "2")
    share = max(1, cores_of_this_process() // 2)
    assert [run.stdout(1, 0) for run in array.runs] == [said(share)] * 4, array.story()
