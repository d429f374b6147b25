"""How many threads a worker has on the local backend: a share of the cores that all workers of the machine's run have.

A node of Slurm's has CPUs of its own. The nodes of the local backend are all this machine, and a library that counts
its CPUs would take all of them in each worker. What may be used is what the submitting process may use: its CPU
affinity, and the quota of its cgroups. Hardware threads of one core count once, as in torch's own default.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator

from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.scheduler.allocation import Allocation

_QUOTA_V1: tuple[str, ...] = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
_QUOTA_V2: tuple[str, ...] = ("cpu.max",)


def threads_of_worker(plan: LaunchPlan, allocation: Allocation) -> int | None:
    """The threads of each worker, None if nothing is to be shared; asks this machine."""
    return share_cores(plan, allocation, cores_of_this_process()) if allocation.is_local else None


def share_cores(plan: LaunchPlan, allocation: Allocation, cores: int) -> int | None:
    """The threads of each worker, one at least; pure.

    Args:
        plan: the launch plan.
        allocation: this node's place.
        cores: how many cores there are for all runs that run side by side.

    Returns:
        The number. None if the job says it, if Slurm gives a node its CPUs, or if there is one worker only, which
        has what torch takes by itself.
    """
    if not allocation.is_local or plan.resources.cpus_per_worker is not None:
        return None
    nodes = len(allocation.nodes)
    at_work = range(min(nodes, plan.nodes.max))  # the rest are spares, which wait
    workers = sum(plan.workers_on(node_id, nodes) for node_id in at_work) * allocation.runs_at_once
    return max(1, cores // workers) if workers > 1 else None


@functools.cache
def cores_of_this_process() -> int:
    """How many cores this process may use; asked once, so that every worker of an agent is told the same."""
    return count_cores(frozenset(os.sched_getaffinity(0)))


def count_cores(cpus: frozenset[int], *, root: str = "/") -> int:
    """How many cores these CPUs are, and at most what the quota of this process's cgroups allows.

    Args:
        cpus: the CPUs that may be used, by number.
        root: where /proc and /sys are.
    """
    topology = os.path.join(root, "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list")
    cores = {_read(topology.format(cpu)) or str(cpu) for cpu in cpus}
    return max(1, min([len(cores), *(int(quota) for quota in _quotas(root))]))


def _quotas(root: str) -> Iterator[float]:
    """The CPUs that each cgroup above this process allows, where one bounds them.

    See cgroups(7), and cpu.max in the kernel's Documentation/admin-guide/cgroup-v2.rst.
    """
    mount = os.path.join(root, "sys/fs/cgroup")
    for line in _read(os.path.join(root, "proc/self/cgroup")).splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if not controllers:
            yield from _quotas_below(mount, path, _QUOTA_V2)
        elif "cpu" in controllers.split(","):
            yield from _quotas_below(os.path.join(mount, controllers), path, _QUOTA_V1)


def _quotas_below(top: str, path: str, files: tuple[str, ...]) -> Iterator[float]:
    """Those of a cgroup and of all that it is in."""
    inside = os.path.normpath(f"/{path.lstrip('/')}")  # it begins with .. where the namespace has a lower root
    folder = os.path.normpath(top + inside)
    while folder.startswith(top):
        with contextlib.suppress(ValueError, ZeroDivisionError):
            quota, period = map(int, " ".join(_read(os.path.join(folder, file)) for file in files).split())
            if quota > 0:
                yield quota / period
        folder = os.path.dirname(folder)


def _read(path: str) -> str:
    """What is in a small file, "" if there is none."""
    with contextlib.suppress(OSError, UnicodeDecodeError), open(path, encoding="utf-8") as file:
        return file.read().strip()
    return ""
