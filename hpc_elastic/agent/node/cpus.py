"""Computes the threads of a worker: its share of the cores that the workers of this machine have.

A library that counts the CPUs would take all of them in each worker. On Slurm the workers of a node share the step's
cores; the nodes of the local backend are all one machine, so there all workers of the run share. Workers may use what
this process may use: its CPU affinity, and the quota of its cgroups. Where Slurm does not keep a step to its CPUs,
they have the part that it says. Hardware threads of one core count once, as in torch's own default.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Mapping

from hpc_elastic.cgroup_cpus import cpu_quotas
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.scheduler.allocation import Allocation
from hpc_elastic.scheduler.slurm.step import find_step_cpus


def threads_of_worker(plan: LaunchPlan, allocation: Allocation, environ: Mapping[str, str]) -> int | None:
    """Return the number of threads of each worker, None if no cores are to be shared; reads this machine's CPUs."""
    cores = cores_of_this_process()
    if not allocation.is_local:
        cores = cores_of_step(cores, len(os.sched_getaffinity(0)), find_step_cpus(environ))
    return share_cores(plan, allocation, cores)


def describe_narrowness(environ: Mapping[str, str]) -> str | None:
    """Return that this process may use fewer CPUs than Slurm says its step has, in words; None if not."""
    of_step, usable = find_step_cpus(environ), len(os.sched_getaffinity(0))
    if of_step is None or usable >= min(of_step, os.cpu_count() or of_step):
        return None
    return (
        f"the agent may use {usable} of the {of_step} CPUs that its step has on this node (SLURM_CPUS_ON_NODE): "
        "something has bound it, such as taskset in a setup line or a site's TaskProlog, and workers have no more"
    )


def cores_of_step(cores: int, cpus: int, of_step: int | None) -> int:
    """Return how many of the cores that a process may use are its step's; pure.

    Args:
        cores: the cores that it may use.
        cpus: their CPUs, the hardware threads.
        of_step: the CPUs of the step by Slurm's word, None if it says nothing. They are fewer where Slurm does not keep
            a step to its own (`TaskPlugin=task/none`, or without cgroups).
    """
    if of_step is None or of_step >= cpus:
        return cores
    return max(1, cores * of_step // cpus)


def share_cores(plan: LaunchPlan, allocation: Allocation, cores: int) -> int | None:
    """Return the number of threads of each worker, at least one; pure.

    Args:
        plan: the launch plan.
        allocation: this node's place.
        cores: the number of cores for all workers of this node, or for all runs that run side by side on this machine.

    Returns:
        The number. None if the job sets it, or if there is only one worker, which uses torch's own default.
    """
    if plan.resources.cpus_per_worker is not None:
        return None
    nodes = len(allocation.nodes)
    at_work = range(min(nodes, plan.nodes.max)) if allocation.is_local else (allocation.node_id,)  # without idle spares
    workers = sum(plan.workers_on(node_id, nodes) for node_id in at_work) * allocation.runs_at_once
    return max(1, cores // workers) if workers > 1 else None


@functools.cache
def cores_of_this_process() -> int:
    """Return how many cores this process may use; cached, so that every worker of an agent gets the same number."""
    return count_cores(frozenset(os.sched_getaffinity(0)))


def count_cores(cpus: frozenset[int], *, root: str = "/") -> int:
    """Count the cores of these CPUs, but at most as many as the quota of this process's cgroups allows.

    Args:
        cpus: the numbers of the CPUs that may be used.
        root: the directory that holds /proc and /sys.
    """
    topology = os.path.join(root, "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list")
    cores = {_read(topology.format(cpu)) or str(cpu) for cpu in cpus}
    return max(1, min([len(cores), *(int(quota) for quota in cpu_quotas(root))]))


def _read(path: str) -> str:
    """Return the text of a small file, "" if it cannot be read."""
    with contextlib.suppress(OSError, UnicodeDecodeError), open(path, encoding="utf-8") as file:
        return file.read().strip()
    return ""
