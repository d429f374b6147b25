"""Reads the cores, NUMA nodes and shared caches of a machine, and where its PCI devices are, from the kernel's files.

Sources: Linux, Documentation/ABI/stable/sysfs-devices-node, .../sysfs-devices-system-cpu, and
Documentation/ABI/testing/sysfs-bus-pci (numa_node, local_cpulist). What a file does not say is taken as not known.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from hpc_elastic.rank_set import RankSetError, parse_ranks

_L3 = "3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """One physical core: the NUMA node on which it is, those of its CPUs that may be used, and its last cache's CPUs.

    `cache` is the first CPU that shares the core's level 3 cache; None if the kernel does not say.
    """

    numa_node: int
    cpus: tuple[int, ...]
    cache: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The cores that may be used, in the order of NUMA nodes and CPUs, and how far NUMA nodes are from each other.

    `distances` has a row for each NUMA node, also for one without CPUs: that of a GPU's or another device's memory.
    `online` are all CPUs of the machine, usable or not; empty if the kernel does not say.
    """

    cores: tuple[Core, ...]
    distances: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    online: frozenset[int] = frozenset()

    @property
    def cpus(self) -> frozenset[int]:
        """Return the CPUs that may be used."""
        return frozenset(cpu for core in self.cores for cpu in core.cpus)

    @property
    def numa_nodes(self) -> tuple[int, ...]:
        """Return the NUMA nodes that have a usable core."""
        return tuple(dict.fromkeys(core.numa_node for core in self.cores))

    def nearest_numa_node(self, node: int) -> int | None:
        """Return the NUMA node with usable cores that is nearest to a node; None if the kernel gives no distances."""
        if node in self.numa_nodes:
            return node
        row = self.distances.get(node, {})
        known = [(row[other], other) for other in self.numa_nodes if other in row]
        return min(known)[1] if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Locality:
    """Where a PCI device is: its NUMA node, None if the kernel knows none, and the CPUs that are local to it."""

    numa_node: int | None = None
    cpus: frozenset[int] = frozenset()


def read_machine(cpus: frozenset[int], *, root: str = "/") -> Machine:
    """Return the machine of these CPUs; where the kernel tells no NUMA nodes, all are on node 0.

    Args:
        cpus: the numbers of the CPUs that may be used.
        root: the directory that holds /sys.
    """
    system = os.path.join(root, "sys/devices/system")
    nodes = _read_set(os.path.join(system, "node/online"))
    node_of = {}
    for node in nodes:
        node_of.update(dict.fromkeys(_read_set(os.path.join(system, f"node/node{node}/cpulist")), node))
    cores: dict[frozenset[int], Core] = {}
    for cpu in sorted(cpus):
        siblings = frozenset(_read_set(os.path.join(system, f"cpu/cpu{cpu}/topology/thread_siblings_list"))) | {cpu}
        if siblings not in cores:
            usable = tuple(sorted(siblings & cpus))
            cores[siblings] = Core(numa_node=node_of.get(cpu, 0), cpus=usable, cache=_read_cache(system, cpu))
    return Machine(
        cores=tuple(sorted(cores.values(), key=lambda core: (core.numa_node, core.cpus))),
        distances={node: _read_distances(system, node, nodes) for node in nodes},
        online=frozenset(_read_set(os.path.join(system, "cpu/online"))),
    )


def read_locality(address: str | None, *, root: str = "/") -> Locality:
    """Return where a PCI device is, by its address such as `0000:1b:00.0`; nothing for one that /sys does not have."""
    if not address:
        return Locality()
    folder = os.path.join(root, "sys/bus/pci/devices", address)
    text = _read(os.path.join(folder, "numa_node"))
    return Locality(
        numa_node=int(text) if text.isdigit() else None,  # -1: the firmware does not say
        cpus=frozenset(_read_set(os.path.join(folder, "local_cpulist"))),
    )


def _read_cache(system: str, cpu: int) -> int | None:
    folder = os.path.join(system, f"cpu/cpu{cpu}/cache/index3")
    if _read(os.path.join(folder, "level")) != _L3:
        return None
    return min(_read_set(os.path.join(folder, "shared_cpu_list")), default=None)


def _read_distances(system: str, node: int, nodes: tuple[int, ...]) -> dict[int, int]:
    words = _read(os.path.join(system, f"node/node{node}/distance")).split()
    if len(words) != len(nodes) or not all(word.isdigit() for word in words):
        return {}
    return {other: int(word) for other, word in zip(nodes, words, strict=True)}


def _read_set(path: str) -> tuple[int, ...]:
    try:
        return parse_ranks(_read(path))
    except RankSetError:
        return ()


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
