"""Which CPUs each worker of a node is bound to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import pytest

from hpc_elastic.agent.node.binding import Core, bind_workers, choose_cpus, find_gpu_nodes, read_cores
from hpc_elastic.errors import AllocationError
from hpc_elastic.plan.roles import NodesPlan
from hpc_elastic.scheduler.allocation import Allocation
from tests.plans import make_local_plan

# Two NUMA nodes of four cores with two hardware threads each: CPU n and n + 8 are of one core.
TWO_NODES = [Core(numa_node=core // 4, cpus=(core, core + 8)) for core in range(8)]
NODE_0, NODE_1 = "0-3,8-11", "4-7,12-15"


def machine(root: Path, *, nodes: int = 2) -> str:
    """Make the files of /sys of such a machine, with two GPUs on node 1 and two on node 0, in this order."""
    for cpu in range(16):
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{cpu % 8},{cpu % 8 + 8}\n")
    for node in range(nodes):
        folder = root / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text((NODE_0, NODE_1)[node] + "\n")
        (root / "sys/devices/system/node/online").write_text(f"0-{node}\n" if node else "0\n")
    for bus, node in (("1b", 1), ("43", 1), ("a1", 0), ("c2", -1)):
        device = root / f"sys/bus/pci/devices/0000:{bus}:00.0"
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{node}\n")
    return str(root)


SMI = """0, GPU-aaaa-1, 00000000:1B:00.0
1, GPU-bbbb-2, 00000000:43:00.0
2, GPU-cccc-3, 00000000:A1:00.0
3, GPU-dddd-4, 00000000:C2:00.0
"""


@pytest.mark.parametrize(
    ("binding", "workers", "gpus", "expected"),
    [
        ("none", 4, [], []),
        ("numa", 4, [], [NODE_0, NODE_0, NODE_1, NODE_1]),
        ("numa", 1, [], [NODE_0]),
        ("numa", 4, [1, 1, 0, 0], [NODE_1, NODE_1, NODE_0, NODE_0]),
        ("numa", 4, [1, 0], [NODE_1, NODE_0, NODE_1, NODE_0]),  # more workers than GPUs
        ("cores", 4, [], ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"]),
        ("cores", 3, [], ["0-2,8-10", "3-5,11-13", "6-7,14-15"]),
        ("cores", 4, [1, 1, 0, 0], ["4-5,12-13", "6-7,14-15", "0-1,8-9", "2-3,10-11"]),
        ("cores", 3, [1, 1, 1], ["4-5,12-13", "6,14", "7,15"]),
    ],
)
def test_workers_have_their_gpus_node_or_a_share_of_the_cores(
    binding: Literal["none", "numa", "cores"], workers: int, gpus: list[int], expected: list[str]
) -> None:
    assert bind_workers(binding, workers, TWO_NODES, gpus) == expected


def test_a_gpu_whose_node_has_no_cpu_of_the_job_counts_as_none() -> None:
    ours = TWO_NODES[:4]
    assert bind_workers("numa", 2, ours, [1, 1]) == [NODE_0, NODE_0]
    assert bind_workers("cores", 2, ours, [1, 1]) == ["0-1,8-9", "2-3,10-11"]


@pytest.mark.parametrize(
    ("gpus", "where"), [([], "this node has 8 cores for 9 workers"), ([1], "its NUMA node 1 has 4 cores for 9 workers")]
)
def test_cores_rejects_fewer_cores_than_workers(gpus: list[int], where: str) -> None:
    with pytest.raises(AllocationError, match=where):
        bind_workers("cores", 9, TWO_NODES, gpus)


def test_cores_are_read_from_the_kernel_with_those_cpus_only_that_may_be_used(tmp_path: Path) -> None:
    root = machine(tmp_path)
    assert read_cores(frozenset(range(16)), root=root) == TWO_NODES
    assert read_cores(frozenset({1, 4, 9}), root=root) == [
        Core(numa_node=0, cpus=(1, 9)),
        Core(numa_node=1, cpus=(4,)),
    ]


def test_each_cpu_is_a_core_of_node_0_if_the_kernel_tells_nothing(tmp_path: Path) -> None:
    assert read_cores(frozenset({2, 5}), root=str(tmp_path)) == [
        Core(numa_node=0, cpus=(2,)),
        Core(numa_node=0, cpus=(5,)),
    ]


@pytest.mark.parametrize(
    ("visible", "nodes"),
    [
        (None, [1, 1, 0, 0]),
        ("0,1,2,3", [1, 1, 0, 0]),
        ("3, 0", [0, 1]),
        ("GPU-cccc,GPU-aaaa-1", [0, 1]),
        ("MIG-1234", []),  # of an unknown GPU
        ("", []),
    ],
)
def test_gpus_are_those_that_workers_see_in_their_order(tmp_path: Path, visible: str | None, nodes: list[int]) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert find_gpu_nodes(environ, root=machine(tmp_path), list_gpus=lambda: SMI) == nodes


def test_a_machine_without_gpus_has_no_nodes_of_gpus(tmp_path: Path) -> None:
    assert find_gpu_nodes({}, root=str(tmp_path), list_gpus=lambda: "") == []
    assert find_gpu_nodes({}, root=str(tmp_path), list_gpus=lambda: "No devices were found\n") == []


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_the_nodes_of_the_local_backend_share_the_machines_cores() -> None:
    plan = make_local_plan(nodes=NodesPlan(min=1, max=2, spares=1), workers_per_node=1, binding="cores")

    def of(node_id: int) -> tuple[str, ...]:
        names = ("local0", "local1", "local2")
        place = Allocation(
            job_id="local-1-2", restart_count=0, array_task=None, node_id=node_id, nodes=names, is_local=True
        )
        return choose_cpus(plan, place, {"CUDA_VISIBLE_DEVICES": ""})

    first, second, spare = of(0), of(1), of(2)
    assert len(first) == 1
    assert first != second
    assert spare == first
