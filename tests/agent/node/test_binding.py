"""Where the workers of a node run, as its agent decides it, and what it says of that."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hpc_elastic.agent.node.binding import WorkerPlaces, announce_places, choose_places
from hpc_elastic.plan.launch_plan import LaunchPlan, ResourcesPlan
from hpc_elastic.plan.roles import NodesPlan
from hpc_elastic.scheduler.allocation import Allocation
from tests.hardware.tools import fake_tool, no_tool
from tests.hardware.trees import Tree
from tests.plans import make_local_plan, make_plan

HERE = sorted(os.sched_getaffinity(0))
several = pytest.mark.skipif(len(HERE) < 2, reason="needs two CPUs")
SMI = "GPU 0: A (UUID: GPU-aaaa)\nGPU 1: A (UUID: GPU-bbbb)\n"
LOCATED = "GPU-aaaa, 00000000:1B:00.0\nGPU-bbbb, 00000000:43:00.0\n"


def on_slurm(workers: int = 2, **changes: Any) -> LaunchPlan:
    return make_plan(workers_per_node=workers, **changes)


PLACE = Allocation(job_id="7", restart_count=0, array_task=None, node_id=0, nodes=("node1", "node2"), is_local=False)


def crossed(root: Path) -> Tree:
    """Two of this machine's CPUs, each on a NUMA node of its own, and two GPUs whose order is the other way round."""
    tree = Tree(root)
    tree.numa({0: str(HERE[0]), 1: ",".join(map(str, HERE[1:]))})
    tree.pci("0000:1b:00.0", 1, ",".join(map(str, HERE[1:])))
    tree.pci("0000:43:00.0", 0, str(HERE[0]))
    return tree


def choose(plan: LaunchPlan, tree: Tree, **environ: str) -> WorkerPlaces:
    return choose_places(plan, PLACE, environ, ask=fake_tool(SMI, LOCATED), root=tree.root)


@several
def test_each_worker_is_bound_near_the_gpu_that_it_sees_under_its_local_rank(tmp_path: Path) -> None:
    tree = crossed(tmp_path)
    first, second = choose(on_slurm(binding="nearest"), tree).cpus
    assert second == str(HERE[0])
    assert first != second
    assert choose(on_slurm(binding="nearest"), tree, CUDA_VISIBLE_DEVICES="1,0").cpus == (second, first)
    assert choose(on_slurm(binding="nearest", env={"CUDA_VISIBLE_DEVICES": "1,0"}), tree).cpus == (second, first)
    virtual = on_slurm(binding="nearest", env={"CUDA_VISIBLE_DEVICES": "${MINE}"})
    assert choose(virtual, tree).cpus == (first, second)  # not known here


@several
def test_a_bound_worker_has_a_thread_for_each_of_its_cores_and_no_more(tmp_path: Path) -> None:
    tree = crossed(tmp_path)
    assert choose(on_slurm(binding="nearest"), tree).threads == 1
    assert choose(on_slurm(workers=1, binding="numa"), tree, CUDA_VISIBLE_DEVICES="1").threads == 1
    many = ResourcesPlan(cpus_per_worker=16)
    assert choose(on_slurm(binding="nearest", resources=many), tree).threads == 1


@several
def test_the_agent_prints_a_map_and_records_it(tmp_path: Path) -> None:
    plan = on_slurm(binding="nearest")
    lines, note = announce_places(plan, PLACE, choose(plan, crossed(tmp_path)))
    assert lines[0] == "binding: nearest on node1: 2 workers, 1 thread each"
    assert lines[2] == f"  local rank 1: CPUs {HERE[0]} (1 core of NUMA node 0), GPU 1 (0000:43:00.0)"
    assert note is not None
    assert (note.name, note.metadata["threads"]) == ("node.bound", 1)
    assert note.metadata["workers"][1]["gpu"] == "GPU 1 (0000:43:00.0)"


def test_nothing_is_said_of_workers_that_are_not_bound(tmp_path: Path) -> None:
    places = choose(on_slurm(), Tree(tmp_path))
    assert (places.cpus, places.problem) == ((), None)
    assert announce_places(on_slurm(), PLACE, places) == ([], None)


def test_too_few_cores_are_a_problem_of_this_node(tmp_path: Path) -> None:
    plan = on_slurm(workers=len(HERE) + 1, binding="cores")
    problem = choose_places(plan, PLACE, {}, ask=no_tool, root=str(tmp_path)).problem
    assert problem is not None
    assert problem.startswith("binding: cores wants a core for each worker, and this node has")


@several
def test_a_gpu_without_a_place_is_remarked(tmp_path: Path) -> None:
    tree = crossed(tmp_path)
    for bus in ("1b", "43"):
        tree.pci(f"0000:{bus}:00.0", -1, "0-95")
        tree.write("sys/devices/system/cpu/online", "0-95")
    (remark,) = choose(on_slurm(binding="nearest"), tree).remarks
    assert remark.startswith("binding: the kernel does not tell where the GPU of local rank 0-1 is")


@several
def test_the_nodes_of_the_local_backend_share_the_machines_cores() -> None:
    plan = make_local_plan(nodes=NodesPlan(min=1, max=2, spares=1), workers_per_node=1, binding="cores")

    def of(node_id: int) -> tuple[str, ...]:
        names = ("local0", "local1", "local2")
        place = Allocation(
            job_id="local-1-2", restart_count=0, array_task=None, node_id=node_id, nodes=names, is_local=True
        )
        return choose_places(plan, place, {"CUDA_VISIBLE_DEVICES": ""}, ask=no_tool).cpus

    first, second, spare = of(0), of(1), of(2)
    assert len(first) == 1
    assert first != second
    assert spare == first


@several
def test_workers_of_all_nodes_of_this_machine_are_near_the_gpu_of_their_own_local_rank(tmp_path: Path) -> None:
    plan = make_local_plan(nodes=NodesPlan(min=2, max=2), workers_per_node=1, binding="numa")
    place = Allocation(
        job_id="local-1-2", restart_count=0, array_task=None, node_id=1, nodes=("local0", "local1"), is_local=True
    )
    (told,) = choose_places(plan, place, {}, ask=fake_tool(SMI, LOCATED), root=crossed(tmp_path).root).places
    assert (told["local_rank"], told["gpu"]) == (0, "GPU 0 (0000:1b:00.0)")
