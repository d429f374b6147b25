"""Chooses the CPUs that each worker of a node is bound to, by NUMA node, physical core and GPU.

The values of `binding` are two of torchrun's modes of `--numa-binding` (torch 2.13, torch/numa/binding.py): `numa` is
`node`, all CPUs of the NUMA node of the worker's GPU; `cores` is `exclusive`, a share of that node's cores which no
other worker has. torch refuses both without CUDA. Here the workers of a node without GPUs share out its cores in
their order, so that neighbours stay on one NUMA node.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hpc_elastic.errors import AllocationError
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.rank_set import RankSetError, format_ranks, parse_ranks
from hpc_elastic.scheduler.allocation import Allocation

Binding = Literal["none", "numa", "cores"]
_GPU_COMMAND = ["nvidia-smi", "--query-gpu=index,uuid,pci.bus_id", "--format=csv,noheader"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """One physical core: the NUMA node on which it is, and those of its CPUs that may be used."""

    numa_node: int
    cpus: tuple[int, ...]


def bind_workers(binding: Binding, workers: int, cores: Sequence[Core], gpu_nodes: Sequence[int]) -> list[str]:
    """Return the CPUs of each of the workers that share these cores, such as `0-15,64-79`; pure.

    Args:
        binding: what a worker is bound to.
        workers: how many workers there are.
        cores: the cores that may be used.
        gpu_nodes: the NUMA node of each GPU in the order in which workers see them; empty without GPUs. A node on
            which none of the cores is counts as the worker's share of the cores.

    Returns:
        A set of CPUs for each worker; nothing if they are not bound.

    Raises:
        AllocationError: there are fewer cores than workers that want one each.
    """
    if binding == "none" or not cores:
        return []
    ordered = sorted(cores, key=lambda core: (core.numa_node, core.cpus))
    nodes = {core.numa_node for core in ordered}
    homes = [ordered[worker * len(ordered) // workers].numa_node for worker in range(workers)]
    if gpu_nodes:
        wanted = [gpu_nodes[worker % len(gpu_nodes)] for worker in range(workers)]
        homes = [node if node in nodes else home for node, home in zip(wanted, homes, strict=True)]
    if binding == "numa":
        return [_cpus([core for core in ordered if core.numa_node == home]) for home in homes]
    if not gpu_nodes:
        return [_cpus(share) for share in _shares(ordered, workers, "this node")]
    shares = {}
    for node in nodes & set(homes):
        there = [core for core in ordered if core.numa_node == node]
        shares[node] = iter(_shares(there, homes.count(node), f"its NUMA node {node}"))
    return [_cpus(next(shares[home])) for home in homes]


def choose_cpus(plan: LaunchPlan, allocation: Allocation, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the CPUs of each worker of this node, nothing if workers are not bound; reads this machine's topology.

    The nodes of the local backend are one machine, so there all of the run's workers share its cores, and those of
    the runs of an array that run side by side. A spare is bound like one of the nodes that it may replace.

    Raises:
        AllocationError: there are too few cores.
    """
    if plan.binding == "none":
        return ()
    nodes = len(allocation.nodes)
    own = plan.workers_on(allocation.node_id, nodes)
    first, total = 0, own
    if allocation.is_local:
        counts = [plan.workers_on(node_id, nodes) for node_id in range(nodes)]
        of_run = sum(counts[: plan.nodes.max])
        first = sum(counts[: allocation.node_id]) + of_run * ((allocation.array_task or 0) % allocation.runs_at_once)
        total = of_run * allocation.runs_at_once
    cores = read_cores(frozenset(os.sched_getaffinity(0)))
    chosen = bind_workers(plan.binding, total, cores, find_gpu_nodes(environ))
    return tuple(chosen[(first + worker) % total] for worker in range(own)) if chosen else ()


def read_cores(cpus: frozenset[int], *, root: str = "/") -> list[Core]:
    """Return the physical cores of these CPUs; where the kernel tells no NUMA nodes, all are on node 0.

    Args:
        cpus: the numbers of the CPUs that may be used.
        root: the directory that holds /sys.
    """
    system = os.path.join(root, "sys/devices/system")
    node_of = {}
    for node in _read_set(os.path.join(system, "node/online")):
        node_of.update(dict.fromkeys(_read_set(os.path.join(system, f"node/node{node}/cpulist")), node))
    cores: dict[frozenset[int], Core] = {}
    for cpu in sorted(cpus):
        siblings = frozenset(_read_set(os.path.join(system, f"cpu/cpu{cpu}/topology/thread_siblings_list"))) | {cpu}
        usable = tuple(sorted(siblings & cpus))
        cores[siblings] = Core(numa_node=node_of.get(cpu, 0), cpus=usable)
    return list(cores.values())


def find_gpu_nodes(
    environ: Mapping[str, str], *, root: str = "/", list_gpus: Callable[[], str] | None = None
) -> list[int]:
    """Return the NUMA node of each GPU that workers see, in their order; nothing where that is not known.

    Args:
        environ: the environment of the step, with `CUDA_VISIBLE_DEVICES` if it is restricted.
        root: the directory that holds /sys.
        list_gpus: returns what the vendor's tool prints, "" if there is none.
    """
    by_name: dict[str, int] = {}
    all_of_them = []
    for line in (list_gpus or _list_gpus)().splitlines():
        index, uuid, address = ([word.strip() for word in line.split(",")] + ["", "", ""])[:3]
        if not index.isdigit():
            continue
        node = _numa_node_of(address, root)
        by_name[index] = by_name[uuid] = node
        all_of_them.append(node)
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return all_of_them
    words = [word.strip() for word in visible.split(",")]
    found = [next((node for name, node in by_name.items() if _names(word, name)), None) for word in words]
    return [node for node in found if node is not None] if None not in found else []


def _names(word: str, name: str) -> bool:
    """Return whether a word of `CUDA_VISIBLE_DEVICES` names a GPU: its number, or the beginning of its UUID."""
    return word == name if word.isdigit() or name.isdigit() else bool(word) and name.startswith(word)


def _numa_node_of(address: str, root: str) -> int:
    """Return the NUMA node of a PCI device; 0 where the kernel knows none, as torch does."""
    domain, _, rest = address.lower().partition(":")
    path = os.path.join(root, "sys/bus/pci/devices", f"{domain[-4:]}:{rest}", "numa_node")
    try:
        with open(path, encoding="ascii") as file:
            return max(0, int(file.read()))
    except (OSError, ValueError):
        return 0


def _list_gpus() -> str:
    try:
        done = subprocess.run(_GPU_COMMAND, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _shares(cores: Sequence[Core], workers: int, where: str) -> list[Sequence[Core]]:
    """Divide cores evenly; the first workers get one more where there is a remainder."""
    if len(cores) < workers:
        found = f"{len(cores)} {'core' if len(cores) == 1 else 'cores'} for {workers} workers"
        raise AllocationError(
            f"binding: cores wants a core for each worker, and {where} has {found}",
            tip="ask for more CPUs with resources.cpus_per_worker, or use binding: numa",
        )
    few, more = divmod(len(cores), workers)
    starts = [worker * few + min(worker, more) for worker in range(workers + 1)]
    return [cores[starts[worker] : starts[worker + 1]] for worker in range(workers)]


def _cpus(cores: Sequence[Core]) -> str:
    return format_ranks(cpu for core in cores for cpu in core.cpus)


def _read_set(path: str) -> tuple[int, ...]:
    try:
        with open(path, encoding="ascii") as file:
            return parse_ranks(file.read().strip())
    except (OSError, UnicodeDecodeError, RankSetError):
        return ()
