"""Chooses the CPUs that each worker of a node is bound to, by NUMA node, core, cache and GPU; pure.

`numa` and `cores` are two of torchrun's modes of `--numa-binding` (torch 2.13, torch/numa/binding.py): `numa` is
`node`, all CPUs of the NUMA node of the worker's GPU; `cores` is `exclusive`, a share of that node's cores which no
other worker has. torch refuses both without CUDA. `nearest` goes by what the kernel calls local to the GPU, which may
be less than a NUMA node, and shares that out in whole level 3 caches where it can. Without GPUs the workers share out
the cores in their order, so that neighbours stay on one NUMA node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from hpc_elastic.errors import AllocationError
from hpc_elastic.hardware.machine import Core, Locality, Machine
from hpc_elastic.rank_set import format_ranks

Binding = Literal["none", "numa", "cores", "nearest"]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The cores of each worker, nothing if workers are not bound, and what is odd about them, a line each."""

    cores: tuple[tuple[Core, ...], ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def cpus(self) -> tuple[str, ...]:
        """Return the CPUs of each worker, such as `0-15,64-79`."""
        return tuple(format_ranks(cpu for core in own for cpu in core.cpus) for own in self.cores)

    def threads(self, worker: int) -> int:
        """Return how many cores a worker has for itself; of cores that several workers have, its part."""
        own = self.cores[worker]
        sharing = sum(set(own) == set(other) for other in self.cores)
        return max(1, len(own) // sharing)


def place_workers(binding: Binding, workers: int, machine: Machine, gpus: Sequence[Locality]) -> Placement:
    """Return the cores of each of the workers that share this machine.

    Args:
        binding: what a worker is bound to.
        workers: how many workers there are.
        machine: the cores that may be used.
        gpus: where each GPU is, in the order in which workers see them; empty without GPUs.

    Raises:
        AllocationError: `cores` is asked for, and there are fewer cores than workers.
    """
    if binding == "none" or not machine.cores or not workers:
        return Placement()
    own = [gpus[worker % len(gpus)] for worker in range(workers)] if gpus else [Locality()] * workers
    if binding == "nearest":
        return _place_nearest(own, machine, has_gpus=bool(gpus))
    homes = _home_nodes(own, machine)
    remarks = _remarks(own, machine) if gpus else ()
    if binding == "numa":
        shared = [tuple(core for core in machine.cores if core.numa_node == home) for home in homes]
        return Placement(cores=tuple(shared), remarks=remarks)
    if not any(_home_of(gpu, machine) is not None for gpu in own):
        return Placement(cores=_shares_or_error(machine.cores, workers, "this node"), remarks=remarks)
    parts = {}
    for node in set(homes):
        there = [core for core in machine.cores if core.numa_node == node]
        parts[node] = iter(_shares_or_error(there, homes.count(node), f"its NUMA node {node}"))
    return Placement(cores=tuple(next(parts[home]) for home in homes), remarks=remarks)


def _home_nodes(own: Sequence[Locality], machine: Machine) -> list[int]:
    """Return the NUMA node of each worker: that of its GPU, or the one where its share of the cores begins."""
    cores, workers = machine.cores, len(own)
    begins = [cores[worker * len(cores) // workers].numa_node for worker in range(workers)]
    found = [_home_of(gpu, machine) for gpu in own]
    return [begin if home is None else home for home, begin in zip(found, begins, strict=True)]


def _home_of(gpu: Locality, machine: Machine) -> int | None:
    return None if gpu.numa_node is None else machine.nearest_numa_node(gpu.numa_node)


def _place_nearest(own: Sequence[Locality], machine: Machine, *, has_gpus: bool) -> Placement:
    """Share out the cores near to each GPU among the workers near to it, and the rest among the other workers."""
    near = [_near_cores(gpu, machine) for gpu in own]
    places: list[tuple[Core, ...]] = [()] * len(own)
    remarks = list(_remarks(own, machine)) if has_gpus else []
    taken: set[Core] = set()
    for group in sorted({cores for cores in near if cores}, key=lambda cores: (len(cores), cores[0].cpus)):
        members = [worker for worker, cores in enumerate(near) if cores == group]
        free = [core for core in group if core not in taken]
        for worker, share in zip(members, _shares_or_all(free or group, len(members), remarks), strict=True):
            places[worker] = share
        taken.update(group)
    homeless = [worker for worker, cores in enumerate(near) if not cores]
    rest = [core for core in machine.cores if core not in taken] or machine.cores
    for worker, share in zip(homeless, _shares_or_all(rest, len(homeless), remarks), strict=True):
        places[worker] = share
    used = {core for own_cores in places for core in own_cores}
    if idle := [core for core in machine.cores if core not in used]:
        names = format_ranks(cpu for core in idle for cpu in core.cpus)
        remarks.append(f"the CPUs {names} are near to no GPU that a worker has by its local rank: no worker runs there")
    return Placement(cores=tuple(places), remarks=tuple(remarks))


def _near_cores(gpu: Locality, machine: Machine) -> tuple[Core, ...]:
    """Return the cores nearest to a GPU; nothing if the kernel does not tell where it is."""
    is_told = gpu.numa_node is not None or (bool(gpu.cpus) and gpu.cpus != machine.online)
    local = tuple(core for core in machine.cores if gpu.cpus.intersection(core.cpus)) if is_told else ()
    if local:
        return local
    home = _home_of(gpu, machine)
    return tuple(core for core in machine.cores if core.numa_node == home)


def _remarks(own: Sequence[Locality], machine: Machine) -> tuple[str, ...]:
    """Return a line on the workers whose GPU has no known place, and one on those whose place has no usable CPU.

    On a machine with one NUMA node every place is the same.
    """
    unknown, elsewhere = [], {}
    for worker, gpu in enumerate(own):
        if not _near_cores(gpu, machine):
            unknown.append(worker)
        elif gpu.cpus and not gpu.cpus & machine.cpus:
            elsewhere[worker] = gpu.cpus
    lines = []
    if unknown and len(machine.numa_nodes) > 1:
        lines.append(
            f"the kernel does not tell where the GPU of local rank {format_ranks(unknown)} is (/sys has no NUMA node "
            "for it, as in some containers and virtual machines): it gets a share of the cores instead"
        )
    if elsewhere:
        near = format_ranks(cpu for cpus in elsewhere.values() for cpu in cpus)
        lines.append(
            f"none of the CPUs near to the GPU of local rank {format_ranks(elsewhere)} may be used here (CPUs {near}): "
            "it gets the nearest of those that may"
        )
    return tuple(lines)


def _shares_or_error(cores: Sequence[Core], workers: int, where: str) -> tuple[tuple[Core, ...], ...]:
    if len(cores) < workers:
        found = f"{len(cores)} {'core' if len(cores) == 1 else 'cores'} for {workers} workers"
        raise AllocationError(
            f"binding: cores wants a core for each worker, and {where} has {found}",
            tip="ask for more CPUs with resources.cpus_per_worker, or use binding: numa",
        )
    return _shares(cores, workers)


def _shares_or_all(cores: Sequence[Core], workers: int, remarks: list[str]) -> tuple[tuple[Core, ...], ...]:
    """Divide cores, but none of a NUMA node or of a cache where whole ones are even enough; if few, all to each."""
    if len(cores) < workers:
        names = format_ranks(cpu for core in cores for cpu in core.cpus)
        remarks.append(f"{workers} workers share the CPUs {names}: there are fewer cores than workers")
        return (tuple(cores),) * workers
    nodes = _groups(cores, [core.numa_node for core in cores])
    if workers > 1 and len(nodes) > 1 and workers % len(nodes) == 0:
        each = workers // len(nodes)
        if _are_even(nodes) and min(map(len, nodes)) >= each:
            return tuple(share for node in nodes for share in _shares_or_all(node, each, remarks))
    caches = _groups(cores, [core.cache for core in cores])
    if workers > 1 and None not in {core.cache for core in cores} and len(caches) % workers == 0:
        whole = tuple(tuple(core for cache in own for core in cache) for own in _shares(caches, workers))
        if _are_even(whole):
            return whole
    return _shares(cores, workers)


def _groups(cores: Sequence[Core], keys: Sequence[int | None]) -> list[tuple[Core, ...]]:
    found: dict[int | None, list[Core]] = {}
    for key, core in zip(keys, cores, strict=True):
        found.setdefault(key, []).append(core)
    return [tuple(group) for group in found.values()]


def _are_even(groups: Sequence[Sequence[Core]]) -> bool:
    """Return whether the smallest is more than half of the largest: of some the job may have a core or two only."""
    sizes = [len(group) for group in groups]
    return 2 * min(sizes) > max(sizes)


def _shares(things: Sequence[_T], workers: int) -> tuple[tuple[_T, ...], ...]:
    """Divide things evenly; the first workers get one more where there is a remainder."""
    few, more = divmod(len(things), max(1, workers))
    starts = [worker * few + min(worker, more) for worker in range(workers + 1)]
    return tuple(tuple(things[starts[worker] : starts[worker + 1]]) for worker in range(workers))
