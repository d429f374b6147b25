"""Counts workers as torchrun's `--nproc-per-node gpu`, `cpu` and `auto` do (torch 2.13, distributed/run.py).

Inside an allocation Slurm says what a node has; elsewhere this machine is the node.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from hpc_elastic.cli.gpu_tool import ask_tool
from hpc_elastic.errors import UsageError
from hpc_elastic.hardware.accelerators import Ask, find_accelerators
from hpc_elastic.hardware.device_lists import select_devices
from hpc_elastic.scheduler.slurm.allocated import count_cpus, count_gpus
from hpc_elastic.scheduler.slurm.step import find_job_id

WORDS = ("gpu", "cpu", "auto")


def count_workers(text: str, environ: Mapping[str, str], *, ask: Ask = ask_tool, root: str = "/") -> str:
    """Return the number of workers of a node as text.

    Args:
        text: `gpu`, `cpu`, `auto` (a worker for each GPU, else for each CPU), or anything else, which is returned.
        environ: the environment, with Slurm's variables inside an allocation.
        ask: runs the vendor's tool.
        root: the directory that holds /proc and /sys.

    Raises:
        UsageError: `gpu`, and there is none; or another device of torchrun's.
    """
    if text == "xpu":
        raise UsageError("--nproc-per-node xpu is not supported", tip="give the number of devices of a node")
    if text not in WORDS:
        return text
    gpus = 0 if text == "cpu" else _count_gpus(environ, ask, root)
    if text == "gpu" and not gpus:
        where = "the allocation has no GPU that is known" if find_job_id(environ) else "there is no GPU here"
        raise UsageError(f"--nproc-per-node gpu, and {where}", tip="give a number, or cpu")
    return str(gpus or count_cpus(environ) or len(os.sched_getaffinity(0)))


def _count_gpus(environ: Mapping[str, str], ask: Ask, root: str) -> int:
    """Return the GPUs of a node; without a list of devices a GPU with MIG parts is one, as torch counts it."""
    if (allocated := count_gpus(environ)) is not None:
        return allocated
    listing = find_accelerators(ask, root=root)
    seen = select_devices(environ, listing)
    if listing is not None and (seen is None or not seen.variables):
        return len(listing.devices)
    return 0 if seen is None else len(seen)
