"""How many GPUs this node's step sees, and whether that is what the plan needs."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

from hpc_elastic.plan.launch_plan import LaunchPlan

_LISTS = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_NO_DEVICES = frozenset({"", "-1", "NoDevFiles"})


def list_command() -> list[str]:
    """NVIDIA's own tool: a line a device."""
    return ["nvidia-smi", "-L"]


def parse_list(returncode: int, stdout: str) -> int | None:
    """How many devices `nvidia-smi -L` lists, the parts of a GPU one by one; None if it failed."""
    if returncode != 0:
        return None
    devices: list[int] = []  # parts of each GPU: a step is given MIG parts as devices of their own
    for line in stdout.splitlines():
        if line.startswith("GPU "):
            devices.append(0)
        elif devices and line.lstrip().startswith("MIG "):
            devices[-1] += 1
    return sum(max(1, parts) for parts in devices)


def visible_gpus(environ: Mapping[str, str], listed: int | None) -> int | None:
    """How many GPUs a process with this environment sees.

    Args:
        environ: Slurm restricts a step by the vendors' variables, or by a device cgroup.
        listed: what the vendor's tool says, None if there is none.

    Returns:
        The number, None if nothing tells.
    """
    for name in _LISTS:
        value = environ.get(name)
        if value is not None:
            named = 0 if value.strip() in _NO_DEVICES else len(value.split(","))
            return named if listed is None else min(named, listed)
    return listed


def count_visible_gpus(environ: Mapping[str, str]) -> int | None:
    """`visible_gpus` of this node; runs the vendor's tool, so not in the event loop."""
    try:
        done = subprocess.run(list_command(), capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return visible_gpus(environ, None)
    return visible_gpus(environ, parse_list(done.returncode, done.stdout))


def gpu_problem(plan: LaunchPlan, visible: int | None) -> str | None:
    """What is wrong with this node's GPUs, None if nothing is or nobody can tell."""
    asked = plan.resources.gpus_per_node
    if not asked or visible is None or visible == asked:
        return None
    return f"the step sees {visible} GPUs, the job asked for gpus_per_node: {asked}"
