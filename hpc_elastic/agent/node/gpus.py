"""Counts the GPUs that this node's step sees, and checks whether they are what the plan needs."""

from __future__ import annotations

from collections.abc import Mapping

from hpc_elastic.agent.system.child_programs import ChildPrograms, NoAnswerError
from hpc_elastic.plan.launch_plan import LaunchPlan

ANSWERS_WITHIN_S = 30.0
_LISTS = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_NO_DEVICES = frozenset({"", "-1", "NoDevFiles"})


def list_command() -> list[str]:
    """Return the command of NVIDIA's tool that prints one line for each device."""
    return ["nvidia-smi", "-L"]


def parse_list(returncode: int, stdout: str) -> int | None:
    """Return how many devices `nvidia-smi -L` lists, with each MIG part of a GPU as one; None if it failed."""
    if returncode != 0:
        return None
    devices: list[int] = []  # the MIG parts of each GPU: Slurm gives them to a step as devices of their own
    for line in stdout.splitlines():
        if line.startswith("GPU "):
            devices.append(0)
        elif devices and line.lstrip().startswith("MIG "):
            devices[-1] += 1
    return sum(max(1, parts) for parts in devices)


def visible_gpus(environ: Mapping[str, str], listed: int | None) -> int | None:
    """Return how many GPUs a process with this environment sees.

    Args:
        environ: the environment; Slurm restricts a step by the vendors' variables, or by a device cgroup.
        listed: the number that the vendor's tool lists, None if there is no such tool.

    Returns:
        The number, None if it is unknown.
    """
    for name in _LISTS:
        value = environ.get(name)
        if value is not None:
            named = 0 if value.strip() in _NO_DEVICES else len(value.split(","))
            return named if listed is None else min(named, listed)
    return listed


def count_visible_gpus(environ: Mapping[str, str]) -> int | None:
    """Return `visible_gpus` of this node; runs the vendor's tool, so it must not run in the event loop."""
    try:
        returncode, stdout = ChildPrograms().run(list_command(), ANSWERS_WITHIN_S)
    except (OSError, NoAnswerError):
        return visible_gpus(environ, None)
    return visible_gpus(environ, parse_list(returncode, stdout))


def gpu_problem(plan: LaunchPlan, visible: int | None) -> str | None:
    """Return what is wrong with this node's GPUs, None if nothing is or their number is unknown."""
    asked = plan.resources.gpus_per_node
    if not asked or visible is None or visible == asked:
        return None
    return f"the step sees {visible} GPUs, the job asked for gpus_per_node: {asked}"
