"""Decides where the workers of this node run: their CPUs by the job's `binding`, and their number of threads."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpc_elastic.agent.node.cpus import threads_of_worker
from hpc_elastic.agent.node.gpus import ask_tool
from hpc_elastic.errors import AllocationError
from hpc_elastic.hardware.accelerators import Ask, find_accelerators
from hpc_elastic.hardware.binding_map import describe_places, map_lines
from hpc_elastic.hardware.device_lists import CUDA, HIP, ONEAPI, ROCR, ZE, select_devices
from hpc_elastic.hardware.machine import read_locality, read_machine
from hpc_elastic.hardware.placement import Placement, place_workers
from hpc_elastic.membership.actions import Note
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.rank_set import parse_ranks
from hpc_elastic.scheduler.allocation import Allocation

_LISTS = (CUDA, ROCR, HIP, ZE, ONEAPI)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlaces:
    """The CPUs of each worker of this node, empty if they are not bound, and the number of threads of each.

    `threads` is None where a worker takes torch's own number. `places` is what people are told of each
    worker, `remarks` what else, and `problem` why the workers cannot be bound as the job asks.
    """

    cpus: tuple[str, ...] = ()
    threads: int | None = None
    places: tuple[Mapping[str, Any], ...] = ()
    remarks: tuple[str, ...] = ()
    problem: str | None = None


def choose_places(
    plan: LaunchPlan, allocation: Allocation, environ: Mapping[str, str], *, ask: Ask = ask_tool, root: str = "/"
) -> WorkerPlaces:
    """Return where the workers of this node run; reads this machine's topology, and asks the vendor's tool for GPUs.

    The nodes of the local backend are one machine, so there all of the run's workers share its cores, and those of
    the runs of an array that run side by side. A spare is bound like one of the nodes that it may replace.
    """
    nodes = len(allocation.nodes)
    own = plan.workers_on(allocation.node_id, nodes)
    if plan.binding == "none":
        return WorkerPlaces(threads=threads_of_worker(plan, allocation, environ))
    first, local_ranks = 0, list(range(own))  # those of all workers that share this machine
    if allocation.is_local:
        counts = [plan.workers_on(node_id, nodes) for node_id in range(nodes)]
        of_run = [local_rank for count in counts[: plan.nodes.max] for local_rank in range(count)]
        first = sum(counts[: allocation.node_id])
        first += len(of_run) * ((allocation.array_task or 0) % allocation.runs_at_once)
        local_ranks = of_run * allocation.runs_at_once
    total = len(local_ranks)
    machine = read_machine(frozenset(os.sched_getaffinity(0)), root=root)
    seen = select_devices(_with_asked(plan, allocation, environ), find_accelerators(ask, root=root, is_located=True))
    shown = seen.devices if seen is not None else ()
    devices = [shown[local_rank % len(shown)] for local_rank in local_ranks] if shown else []
    where = {device: read_locality(device.address if device else None, root=root) for device in devices}
    try:
        placement = place_workers(plan.binding, total, machine, [where[device] for device in devices])
    except AllocationError as error:
        threads = threads_of_worker(plan, allocation, environ)
        return WorkerPlaces(threads=threads, problem=f"{error.message}; {error.tip}" if error.tip else error.message)
    if not placement.cores:
        return WorkerPlaces(threads=threads_of_worker(plan, allocation, environ))
    places = describe_places(placement, devices, first=first, workers=own)
    return WorkerPlaces(
        cpus=tuple(place["cpus"] for place in places),
        threads=_threads(plan, placement, [(first + worker) % total for worker in range(own)]),
        places=tuple(places),
        remarks=tuple(f"binding: {remark}" for remark in placement.remarks),
    )


def announce_places(plan: LaunchPlan, allocation: Allocation, places: WorkerPlaces) -> tuple[list[str], Note | None]:
    """Return the map for the agent's log, and the event with it; nothing where workers are not bound."""
    if not places.places:
        return [], None
    threads = "" if places.threads is None else f", {places.threads} thread{'s' if places.threads > 1 else ''} each"
    workers = f"{len(places.places)} worker{'s' if len(places.places) > 1 else ''}"
    head = f"binding: {plan.binding} on {allocation.node}: {workers}{threads}"
    lines = [head, *(f"  {line}" for line in map_lines(places.places))]
    metadata: dict[str, Any] = {
        "node": allocation.node,
        "binding": plan.binding,
        "workers": [dict(place) for place in places.places],
    }
    if places.threads is not None:
        metadata["threads"] = places.threads
    return lines, Note(name="node.bound", message=head, attempt=0, metadata=metadata)


def _threads(plan: LaunchPlan, placement: Placement, own: Sequence[int]) -> int:
    """Return the threads of each worker, which is the same for all: forks have those of the process they come from."""
    asked = plan.resources.cpus_per_worker
    if asked is not None:
        return min(asked, *(len(parse_ranks(placement.cpus[worker])) for worker in own))
    return min(placement.threads(worker) for worker in own)


def _with_asked(plan: LaunchPlan, allocation: Allocation, environ: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment with what the job's `env` says of these variables, where it is a plain value."""
    role = plan.role_on(allocation.node_id, len(allocation.nodes))
    asked = {name: value for name, value in {**plan.env, **role.env}.items() if name in _LISTS}
    plain = {name: value for name, value in asked.items() if value is not None and "$" not in value}
    return {name: value for name, value in {**environ, **plain}.items() if asked.get(name, "") is not None}
