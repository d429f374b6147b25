"""Files of /sys and /proc of machines that are not here: made up after what their sites and vendors document.

LUMI-G: "CPU binding" and "GPU nodes" of the LUMI user guide, whose masks by local rank the test has word for word.
DGX H100: NVIDIA's DGX H100/H200 User Guide, "System Topology". GH200: "Grace Hopper" of the Alps documentation and
NVIDIA's "Grace CPU tuning guide": four superchips of 72 cores, whose GPUs' memory is NUMA nodes of its own without
CPUs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from hpc_elastic.rank_set import format_ranks


class Tree:
    """The files of one made-up machine."""

    def __init__(self, root: Path) -> None:
        self.path = root
        self.root = str(root)
        self._folders: set[str] = set()

    def write(self, name: str, text: str) -> None:
        folder, _, file = f"{self.root}/{name}".rpartition("/")
        if folder not in self._folders:
            os.makedirs(folder, exist_ok=True)
            self._folders.add(folder)
        with open(f"{folder}/{file}", "w", encoding="utf-8") as opened:
            opened.write(f"{text}\n")

    def cpus(self, cores: int, *, threads: int = 1, cache: int | None = None, offline: Iterable[int] = ()) -> None:
        """Make cores whose second hardware threads are numbered after all first ones; `cache` cores share an L3."""
        away = frozenset(offline)
        for cpu in set(range(cores * threads)) - away:
            core = cpu % cores
            siblings = [core + thread * cores for thread in range(threads)]
            folder = f"sys/devices/system/cpu/cpu{cpu}"
            self.write(f"{folder}/topology/thread_siblings_list", _set(set(siblings) - away))
            if cache is not None:
                first = core // cache * cache
                shared = [n + thread * cores for n in range(first, first + cache) for thread in range(threads)]
                self.write(f"{folder}/cache/index3/level", "3")
                self.write(f"{folder}/cache/index3/shared_cpu_list", _set(set(shared) - away))
        self.write("sys/devices/system/cpu/online", _set(set(range(cores * threads)) - away))

    def numa(self, cpus: Mapping[int, str], distances: Mapping[int, Sequence[int]] | None = None) -> None:
        self.write("sys/devices/system/node/online", _set(cpus))
        for node, text in cpus.items():
            self.write(f"sys/devices/system/node/node{node}/cpulist", text)
            if distances is not None:
                self.write(f"sys/devices/system/node/node{node}/distance", " ".join(map(str, distances[node])))

    def pci(self, address: str, numa_node: int, cpus: str, *, vendor: str = "0x10de", kind: str = "0x030200") -> None:
        folder = f"sys/bus/pci/devices/{address}"
        self.write(f"{folder}/numa_node", str(numa_node))
        self.write(f"{folder}/local_cpulist", cpus)
        self.write(f"{folder}/vendor", vendor)
        self.write(f"{folder}/class", kind)

    def kfd(self, node: int, *lines: str) -> None:
        self.write(f"sys/class/kfd/kfd/topology/nodes/{node}/properties", "\n".join(lines))


def _set(cpus: Iterable[int]) -> str:
    return format_ranks(cpus)


def lumi_g(root: Path) -> Tree:
    """64 cores in eight caches and four NUMA nodes, and eight GCDs in ROCm's order, two to a NUMA node."""
    tree = Tree(root)
    tree.cpus(64, threads=2, cache=8)
    of_node = {node: f"{16 * node}-{16 * node + 15},{64 + 16 * node}-{64 + 16 * node + 15}" for node in range(4)}
    tree.numa(of_node, {node: [10 if node == other else 12 for other in range(4)] for node in range(4)})
    for node in range(4):
        tree.kfd(node, "cpu_cores_count 32", "simd_count 0", "location_id 0", "domain 0", "unique_id 0")
    buses = (0xC1, 0xC6, 0xC9, 0xCE, 0xD1, 0xD6, 0xD9, 0xDE)
    for number, (bus, numa_node) in enumerate(zip(buses, (3, 3, 1, 1, 0, 0, 2, 2), strict=True)):
        tree.pci(f"0000:{bus:02x}:00.0", numa_node, of_node[numa_node], vendor="0x1002", kind="0x038000")
        location = f"location_id {bus << 8}"
        tree.kfd(
            4 + number, "cpu_cores_count 0", "simd_count 440", location, "domain 0", f"unique_id {0xABC0 + number}"
        )
    return tree


DGX_SMI = "".join(f"GPU {n}: NVIDIA H100 80GB HBM3 (UUID: GPU-{n}{n}{n}{n}-0)\n" for n in range(8))
DGX_BUSES = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
DGX_LOCATED = "".join(f"GPU-{n}{n}{n}{n}-0, 00000000:{bus.upper()}:00.0\n" for n, bus in enumerate(DGX_BUSES))


def dgx_h100(root: Path) -> Tree:
    """Two sockets of 56 cores with two threads, and four GPUs on each."""
    tree = Tree(root)
    tree.cpus(112, threads=2, cache=56)
    of_node = {0: "0-55,112-167", 1: "56-111,168-223"}
    tree.numa(of_node, {0: [10, 21], 1: [21, 10]})
    for number, bus in enumerate(DGX_BUSES):
        tree.pci(f"0000:{bus}:00.0", number // 4, of_node[number // 4])
    return tree


GH200_SMI = "".join(f"GPU {n}: NVIDIA GH200 120GB (UUID: GPU-{n}{n}{n}{n}-0)\n" for n in range(4))
GH200_LOCATED = "".join(f"GPU-{n}{n}{n}{n}-0, 0000{n:03x}9:01:00.0\n" for n in range(4))


def gh200(root: Path, *, names_memory: bool = False) -> Tree:
    """Four superchips of 72 cores; nodes 4, 12, 20 and 28 are the GPUs' memory, without CPUs.

    Args:
        root: where the files go.
        names_memory: the PCI devices are said to be on the NUMA nodes of their memory, and to have no local CPUs.
    """
    tree = Tree(root)
    tree.cpus(288)
    memory = (4, 12, 20, 28)
    cpus = {node: f"{72 * node}-{72 * node + 71}" for node in range(4)} | dict.fromkeys(memory, "")
    chip = {**{node: node for node in range(4)}, **{node: number for number, node in enumerate(memory)}}
    nodes = sorted(cpus)
    rows = {a: [10 if a == b else 80 if chip[a] == chip[b] else 120 for b in nodes] for a in nodes}
    tree.numa(cpus, rows)
    for number in range(4):
        numa_node = memory[number] if names_memory else number
        tree.pci(f"{number:03x}9:01:00.0", numa_node, "" if names_memory else cpus[number])
    return tree


def two_sockets(root: Path, *, offline: Iterable[int] = ()) -> Tree:
    """Two sockets of 24 cores with two threads, and no GPU."""
    tree = Tree(root)
    tree.cpus(48, threads=2, cache=24, offline=offline)
    tree.numa({0: "0-23,48-71", 1: "24-47,72-95"}, {0: [10, 32], 1: [32, 10]})
    return tree
