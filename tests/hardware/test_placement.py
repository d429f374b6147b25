"""Which CPUs each worker of a node is bound to, on machines whose files are made up, and where those are odd."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from hpc_elastic.errors import AllocationError
from hpc_elastic.hardware.accelerators import find_accelerators
from hpc_elastic.hardware.binding_map import describe_places, map_lines
from hpc_elastic.hardware.device_lists import Device, select_devices
from hpc_elastic.hardware.machine import Core, Locality, Machine, read_locality, read_machine
from hpc_elastic.hardware.placement import Binding, Placement, place_workers
from hpc_elastic.rank_set import parse_ranks
from tests.hardware.tools import fake_tool, no_tool
from tests.hardware.trees import (
    DGX_LOCATED,
    DGX_SMI,
    GH200_LOCATED,
    GH200_SMI,
    Tree,
    dgx_h100,
    gh200,
    lumi_g,
    two_sockets,
)

# Two NUMA nodes of four cores with two hardware threads each: CPU n and n + 8 are of one core.
TWO_NODES = Machine(cores=tuple(Core(numa_node=core // 4, cpus=(core, core + 8)) for core in range(8)))
NODE_0, NODE_1 = "0-3,8-11", "4-7,12-15"
MASKS = "fe000000000000 fe00000000000000 fe0000 fe000000 fe fe00 fe00000000 fe0000000000"  # LUMI's guide, by local rank


def on(*nodes: int | None) -> list[Locality]:
    return [Locality(numa_node=node) for node in nodes]


def place(
    tree: Tree, binding: Binding, workers: int, *, smi: str = "", located: str = "", cpus: str | None = None
) -> Placement:
    usable = frozenset(parse_ranks(cpus or (tree.path / "sys/devices/system/cpu/online").read_text().strip()))
    listing = find_accelerators(fake_tool(smi, located) if smi else no_tool, root=tree.root, is_located=True)
    seen = select_devices({}, listing)
    devices = seen.devices if seen else ()
    localities = [read_locality(device.address if device else None, root=tree.root) for device in devices]
    return place_workers(binding, workers, read_machine(usable, root=tree.root), localities)


@pytest.mark.parametrize(
    ("binding", "workers", "gpus", "expected"),
    [
        ("none", 4, [], ()),
        ("numa", 4, [], (NODE_0, NODE_0, NODE_1, NODE_1)),
        ("numa", 1, [], (NODE_0,)),
        ("numa", 4, [1, 1, 0, 0], (NODE_1, NODE_1, NODE_0, NODE_0)),
        ("numa", 4, [1, 0], (NODE_1, NODE_0, NODE_1, NODE_0)),  # more workers than GPUs
        ("cores", 4, [], ("0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15")),
        ("cores", 3, [], ("0-2,8-10", "3-5,11-13", "6-7,14-15")),
        ("cores", 4, [1, 1, 0, 0], ("4-5,12-13", "6-7,14-15", "0-1,8-9", "2-3,10-11")),
        ("cores", 3, [1, 1, 1], ("4-5,12-13", "6,14", "7,15")),
        ("nearest", 4, [], ("0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15")),
        ("nearest", 4, [1, 1, 0, 0], ("4-5,12-13", "6-7,14-15", "0-1,8-9", "2-3,10-11")),
        ("nearest", 2, [1], ("4-5,12-13", "6-7,14-15")),
        ("nearest", 3, [1, None, 1], ("4-5,12-13", NODE_0, "6-7,14-15")),  # one of unknown place gets what is left
    ],
)
def test_workers_have_their_gpus_node_or_a_share_of_the_cores(
    binding: Literal["none", "numa", "cores", "nearest"],
    workers: int,
    gpus: list[int | None],
    expected: tuple[str, ...],
) -> None:
    assert place_workers(binding, workers, TWO_NODES, on(*gpus)).cpus == expected


def test_a_gpu_whose_node_has_no_cpu_of_the_job_counts_as_none_if_no_distance_is_known() -> None:
    ours = Machine(cores=TWO_NODES.cores[:4])
    assert place_workers("numa", 2, ours, on(1, 1)).cpus == (NODE_0, NODE_0)
    assert place_workers("cores", 2, ours, on(1, 1)).cpus == ("0-1,8-9", "2-3,10-11")
    assert place_workers("nearest", 2, ours, on(1, 1)).cpus == ("0-1,8-9", "2-3,10-11")


@pytest.mark.parametrize(
    ("gpus", "where"), [([], "this node has 8 cores for 9 workers"), ([1], "its NUMA node 1 has 4 cores for 9 workers")]
)
def test_cores_rejects_fewer_cores_than_workers(gpus: list[int], where: str) -> None:
    with pytest.raises(AllocationError, match=where):
        place_workers("cores", 9, TWO_NODES, on(*gpus))


def test_nearest_lets_workers_share_cores_and_says_so_if_there_are_fewer() -> None:
    placement = place_workers("nearest", 5, TWO_NODES, on(1))
    assert placement.cpus == (NODE_1,) * 5
    assert placement.remarks[0] == f"5 workers share the CPUs {NODE_1}: there are fewer cores than workers"


@pytest.mark.parametrize(
    ("binding", "workers", "threads"),
    [("numa", 4, 2), ("numa", 1, 4), ("cores", 4, 2), ("cores", 3, 2), ("nearest", 9, 1)],
)
def test_a_worker_has_as_many_threads_as_cores_for_itself(binding: Binding, workers: int, threads: int) -> None:
    placement = place_workers(binding, workers, TWO_NODES, [])
    assert min(placement.threads(worker) for worker in range(workers)) == threads


# LUMI-G.


def test_a_node_of_lumi_g_gets_the_masks_of_its_sites_own_guide(tmp_path: Path) -> None:
    ours = ",".join(f"{first + 1}-{first + 7}" for first in range(0, 64, 8))  # the site keeps a core of each cache
    placement = place(lumi_g(tmp_path), "nearest", 8, cpus=ours)
    masks = [sum(1 << cpu for cpu in parse_ranks(cpus)) for cpus in placement.cpus]
    assert [f"{mask:x}" for mask in masks] == MASKS.split()
    assert placement.remarks == ()
    assert {placement.threads(worker) for worker in range(8)} == {7}


def test_a_node_of_lumi_g_with_both_threads_of_a_core_keeps_them_together(tmp_path: Path) -> None:
    assert place(lumi_g(tmp_path), "nearest", 8).cpus[0] == "48-55,112-119"


def test_the_numa_nodes_of_amd_gpus_count_for_the_other_bindings_too(tmp_path: Path) -> None:
    tree = lumi_g(tmp_path)
    assert place(tree, "numa", 8).cpus[2] == "16-31,80-95"
    assert place(tree, "cores", 8).cpus[:2] == ("48-55,112-119", "56-63,120-127")


def test_the_map_names_cores_numa_node_and_gpu(tmp_path: Path) -> None:
    tree = lumi_g(tmp_path)
    listing = find_accelerators(no_tool, root=tree.root, is_located=True)
    assert listing is not None
    lines = map_lines(describe_places(place(tree, "nearest", 8), listing.devices))
    assert lines[0] == "local rank 0: CPUs 48-55,112-119 (8 cores of NUMA node 3), GPU 0 (0000:c1:00.0)"


# DGX H100, GH200, a node without GPUs.


def test_a_dgx_h100_shares_each_socket_among_its_four_gpus(tmp_path: Path) -> None:
    placement = place(dgx_h100(tmp_path), "nearest", 8, smi=DGX_SMI, located=DGX_LOCATED)
    assert placement.cpus[0] == "0-13,112-125"
    assert placement.cpus[3] == "42-55,154-167"
    assert placement.cpus[4] == "56-69,168-181"
    assert placement.remarks == ()


@pytest.mark.parametrize("names_memory", [False, True])
def test_a_gh200_binds_each_rank_to_its_own_superchip(tmp_path: Path, names_memory: bool) -> None:
    tree = gh200(tmp_path, names_memory=names_memory)
    bindings: tuple[Binding, ...] = ("nearest", "numa", "cores")
    for binding in bindings:
        placement = place(tree, binding, 4, smi=GH200_SMI, located=GH200_LOCATED)
        assert placement.cpus == ("0-71", "72-143", "144-215", "216-287")
        assert placement.remarks == ()


@pytest.mark.parametrize("binding", ["nearest", "cores"])
def test_a_node_without_gpus_is_shared_in_whole_caches_and_sockets(tmp_path: Path, binding: Binding) -> None:
    tree = two_sockets(tmp_path)
    assert place(tree, binding, 2).cpus == ("0-23,48-71", "24-47,72-95")
    assert place(tree, binding, 4).cpus == ("0-11,48-59", "12-23,60-71", "24-35,72-83", "36-47,84-95")
    assert place(tree, binding, 4).remarks == ()


# What is odd.


def test_a_cpuset_narrower_than_a_numa_node_is_shared_without_the_rest(tmp_path: Path) -> None:
    placement = place(dgx_h100(tmp_path), "nearest", 8, smi=DGX_SMI, located=DGX_LOCATED, cpus="4-11,60-67")
    assert placement.cpus == ("4-5", "6-7", "8-9", "10-11", "60-61", "62-63", "64-65", "66-67")
    assert placement.remarks == ()


def test_a_cpuset_on_the_other_socket_is_taken_and_said(tmp_path: Path) -> None:
    placement = place(dgx_h100(tmp_path), "nearest", 8, smi=DGX_SMI, located=DGX_LOCATED, cpus="0-7")
    assert [len(parse_ranks(cpus)) for cpus in placement.cpus] == [1] * 8
    (line,) = placement.remarks
    assert line.startswith("none of the CPUs near to the GPU of local rank 4-7 may be used here (CPUs 56-111,168-223)")


def test_cpus_that_belong_to_no_worker_are_said(tmp_path: Path) -> None:
    placement = place(dgx_h100(tmp_path), "nearest", 4, smi=DGX_SMI, located=DGX_LOCATED)
    assert placement.remarks == (
        "the CPUs 56-111,168-223 are near to no GPU that a worker has by its local rank: no worker runs there",
    )


def test_offline_cpus_are_never_named(tmp_path: Path) -> None:
    offline = {0, 1, 2, 48, 49, 50, 23}
    placement = place(two_sockets(tmp_path, offline=offline), "nearest", 4)
    named = {cpu for cpus in placement.cpus for cpu in parse_ranks(cpus)}
    assert named == set(range(96)) - offline
    assert placement.cpus == ("3-13,51-61", "14-22,62-71", "24-35,72-83", "36-47,84-95")


def test_caches_of_which_the_job_has_too_unequal_parts_are_cut(tmp_path: Path) -> None:
    ours = "48-55,56"  # eight cores of one cache and one of the other
    placement = place(lumi_g(tmp_path), "nearest", 2, cpus=ours)
    assert placement.cpus == ("48-52", "53-56")


@pytest.mark.parametrize("binding", ["nearest", "cores", "numa"])
def test_a_gpu_that_sys_does_not_have_costs_one_clear_line(tmp_path: Path, binding: Binding) -> None:
    tree = two_sockets(tmp_path)  # a container's /sys, without the GPUs that the tool lists
    placement = place(tree, binding, 2, smi=DGX_SMI, located=DGX_LOCATED)
    assert placement.cpus == ("0-23,48-71", "24-47,72-95")
    (line,) = placement.remarks
    assert line.startswith("the kernel does not tell where the GPU of local rank 0-1 is")


def test_where_a_gpu_is_does_not_matter_on_one_numa_node(tmp_path: Path) -> None:
    tree = Tree(tmp_path)  # a desktop, whose processor has a GPU of its own
    tree.cpus(8)
    tree.numa({0: "0-7"})
    tree.kfd(1, "simd_count 16", "location_id 256", "domain 0")
    tree.pci("0000:01:00.0", -1, "0-7", vendor="0x1002")
    assert place(tree, "nearest", 2) == place_workers(
        "nearest", 2, read_machine(frozenset(range(8)), root=tree.root), []
    )


def test_a_virtual_machine_that_places_no_gpu_shares_out_its_cores(tmp_path: Path) -> None:
    tree = two_sockets(tmp_path)
    for bus in DGX_LOCATED.splitlines():
        tree.pci(f"0000:{bus.split(':')[1].lower()}:00.0", -1, "0-95")
    placement = place(tree, "nearest", 8, smi=DGX_SMI, located=DGX_LOCATED)
    assert placement.cpus[0] == "0-5,48-53"
    assert placement.cpus[7] == "42-47,90-95"
    assert len(placement.remarks) == 1


def test_each_cpu_is_a_core_of_node_0_if_the_kernel_tells_nothing(tmp_path: Path) -> None:
    cores = (Core(numa_node=0, cpus=(2,)), Core(numa_node=0, cpus=(5,)))
    assert read_machine(frozenset({2, 5}), root=str(tmp_path)).cores == cores


def test_cores_have_those_cpus_only_that_may_be_used(tmp_path: Path) -> None:
    machine = read_machine(frozenset({1, 4, 49}), root=two_sockets(tmp_path).root)
    assert [(core.numa_node, core.cpus) for core in machine.cores] == [(0, (1, 49)), (0, (4,))]


def test_files_with_nonsense_are_taken_as_silent(tmp_path: Path) -> None:
    tree = two_sockets(tmp_path)
    tree.write("sys/devices/system/node/online", "both")
    tree.write("sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "x")
    tree.write("sys/devices/system/cpu/cpu0/cache/index3/shared_cpu_list", "\ufeff")
    machine = read_machine(frozenset({0, 1}), root=tree.root)
    assert [core.cpus for core in machine.cores] == [(0,), (1,)]
    tree.write("sys/bus/pci/devices/0000:1b:00.0/numa_node", "many")
    assert read_locality("0000:1b:00.0", root=tree.root) == Locality()
    assert str(Device(index=1)) == "GPU 1"
