"""Says what each worker of a node is bound to, and the same of many nodes at once; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hpc_elastic.hardware.device_lists import Device
from hpc_elastic.hardware.machine import Core
from hpc_elastic.hardware.placement import Placement
from hpc_elastic.rank_set import format_ranks


def describe_places(
    placement: Placement, devices: Sequence[Device | None], *, first: int = 0, workers: int | None = None
) -> list[dict[str, Any]]:
    """Return what each worker has, as JSON: its local rank, CPUs, NUMA nodes, cores and GPU.

    Args:
        placement: the cores of each worker of the machine.
        devices: the GPUs in the order in which workers see them; None for one that is not known.
        first: the first worker of this node, where several nodes are one machine.
        workers: how many workers this node has; None: all.
    """
    total = len(placement.cores)
    return [
        {
            "local_rank": number,
            "cpus": placement.cpus[worker],
            "cores": len(placement.cores[worker]),
            "numa_nodes": numa_nodes(placement.cores[worker]),
            "gpu": _device(devices, worker),
        }
        for number, worker in enumerate((first + each) % total for each in range(workers or total))
    ]


def numa_nodes(cores: Iterable[Core]) -> str:
    """Return the NUMA nodes of these cores, such as `0-1`."""
    return format_ranks(core.numa_node for core in cores)


def map_lines(places: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each worker: `local rank 0: CPUs 49-55 (7 cores of NUMA node 3), GPU 0 (0000:c1:00.0)`."""
    lines = []
    for place in places:
        count, nodes = place.get("cores"), str(place.get("numa_nodes", "?"))
        node = f"NUMA node{'s' if not nodes.isdigit() else ''} {nodes}"
        gpu = f", {place['gpu']}" if place.get("gpu") else ""
        cores = f"{count} core{'s' if count != 1 else ''}"
        lines.append(f"local rank {place.get('local_rank')}: CPUs {place.get('cpus')} ({cores} of {node}){gpu}")
    return lines


def _device(devices: Sequence[Device | None], worker: int) -> str | None:
    device = devices[worker % len(devices)] if devices else None
    return None if device is None else str(device)
