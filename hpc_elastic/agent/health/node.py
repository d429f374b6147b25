"""What a node itself says: its memory, its network interfaces and the CPUs that this process may use."""

from __future__ import annotations

import os
import re

from hpc_elastic.agent.node.network import interface_addresses
from hpc_elastic.plan.launch_plan import LaunchPlan, NetworkPlan, ResourcesPlan
from hpc_elastic.units import parse_slurm_memory

# Slurm's RealMemory is what the node has; the kernel and the agents of the site have a part of it in use.
AVAILABLE_PART = 0.8


def asked_memory(resources: ResourcesPlan) -> int | None:
    """Return the bytes of memory that the job asks for on a node; None if it does not say, or asks for all."""
    each, times = resources.memory_per_node, 1
    if each is None and resources.memory_per_cpu is not None:
        each, times = resources.memory_per_cpu, resources.cpus_per_task or 1
    if each is None and resources.memory_per_gpu is not None:
        each, times = resources.memory_per_gpu, resources.gpus_per_node or 1
    return None if each is None else times * parse_slurm_memory(each) or None


def find_memory_problem(resources: ResourcesPlan, meminfo: str) -> str | None:
    """Return whether less memory is available than the job asks for, in words; None if not, or if it is not known.

    Args:
        resources: what the job asks for.
        meminfo: the content of /proc/meminfo.
    """
    asked = asked_memory(resources)
    found = re.search(r"(?m)^MemAvailable:\s+(\d+) kB$", meminfo)
    if asked is None or found is None:
        return None
    available = int(found[1]) * 1024
    if available >= AVAILABLE_PART * asked:
        return None
    return f"{available / 2**30:.1f} GiB of memory are available, the job asked for {asked / 2**30:.1f} GiB"


def find_interface_problem(network: NetworkPlan, *, sys: str = "/sys") -> str | None:
    """Return which interface that the site names is not there or not up, None if all are."""
    names = _interfaces(sys)
    if network.interface:
        problem = _state_problem(network.interface, names, sys)
        if problem is not None:
            return problem
        if network.interface not in {name for name, _ in interface_addresses()}:
            return f"{network.interface} has no IPv4 address"
    for wanted in _nccl_names(network.nccl_socket_ifname or ""):
        is_exact = wanted.startswith("=")
        matching = [name for name in names if (name == wanted[1:] if is_exact else name.startswith(wanted))]
        if not any(_is_up(name, sys) for name in matching):
            return f"no interface {wanted.lstrip('=')} is up, which nccl_socket_ifname names"
    return None


def find_cpu_problem(plan: LaunchPlan) -> str | None:
    """Return whether this process may use fewer CPUs than its step has, in words; None if not."""
    asked = plan.resources.cpus_per_task
    if asked is None:
        return None
    usable, expected = len(os.sched_getaffinity(0)), min(asked, os.cpu_count() or 1)
    return None if usable >= expected else f"the agent may use {usable} CPUs, the step has {expected}"


def _interfaces(sys: str) -> list[str]:
    try:
        return sorted(os.listdir(f"{sys}/class/net"))
    except OSError:
        return []


def _state_problem(interface: str, names: list[str], sys: str) -> str | None:
    if interface not in names:
        return f"there is no interface {interface}, only {', '.join(names) or 'none at all'}"
    return None if _is_up(interface, sys) else f"interface {interface} is {_state(interface, sys)}"


def _is_up(interface: str, sys: str) -> bool:
    return _state(interface, sys) in ("up", "unknown", "dormant", "")  # a loopback or tunnel says unknown


def _state(interface: str, sys: str) -> str:
    """Return the interface's `operstate`, "" if the kernel does not say. Source: sysfs-class-net of the kernel."""
    try:
        with open(f"{sys}/class/net/{interface}/operstate", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _nccl_names(text: str) -> list[str]:
    """Return the interfaces that NCCL_SOCKET_IFNAME asks for, each a prefix or, behind `=`, a name; none for `^`."""
    if text.startswith("^"):
        return []
    is_exact = text.startswith("=")
    return [f"{'=' * is_exact}{name.strip()}" for name in text.lstrip("=").split(",") if name.strip()]
