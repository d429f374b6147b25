"""The image that agents run in, as the plan says it, and the grammar of its mounts; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hpc_elastic.plan.references import check_references

Runtime = Literal["pyxis", "apptainer", "command"]
RUNTIMES: tuple[Runtime, ...] = ("pyxis", "apptainer", "command")
MOUNT = "SOURCE, SOURCE:TARGET or SOURCE:TARGET:ro"

# What an agent in an image has of its step's environment beside what the job names, and what begins with SLURM_ or
# HPC_ELASTIC_: its GPUs. Nothing else crosses over, for a path of the host means another thing in the image.
PASSED_VARIABLES = (
    "SLURMD_NODENAME",
    "CUDA_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MountPlan:
    """A folder or file of the node, and where the image has it; an optional one is left out where it does not exist."""

    source: str
    target: str
    is_read_only: bool = False
    is_optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPlan:
    """How agents get into an image.

    `image` and `mounts` keep `${NAME}` and `$$`, which expand outside of the image: on each node, with pyxis where srun
    is called. `command` is the program that starts the agent where the runtime is `command`. `env` are the
    variables that cross over beside `PASSED_VARIABLES`.
    """

    runtime: Runtime
    image: str | None
    command: str | None = None
    mounts: tuple[MountPlan, ...] = ()
    env: tuple[str, ...] = ()


def parse_mount(text: str) -> MountPlan:
    """Parse a mount as job files have it.

    Raises:
        ValueError: it is none, or no runtime could be told of it.
    """
    check_references(text)
    source, *rest = text.split(":")
    if len(rest) > 2 or not all((source, *rest)) or rest[1:] not in ([], ["ro"], ["rw"]):
        raise ValueError(f"expected {MOUNT}, found {text!r}")
    target = rest[0] if rest else source
    if rest and not target.startswith(("/", "${")):
        raise ValueError(f"expected an absolute path in the image, found {target!r} in {text!r}")
    if why := why_no_mount(text):
        raise ValueError(f"{why}: {text!r}")
    return MountPlan(source=source, target=target, is_read_only=rest[1:] == ["ro"])


def why_no_mount(path: str, *, separators: str = "") -> str:
    """Return why a path cannot be mounted by every runtime; empty if it can."""
    found = next((each for each in path if each in f",\\\"'{separators}" or each.isspace()), None)
    return "" if found is None else f"{found!r} in a path is a separator to container runtimes"
