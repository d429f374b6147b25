"""Counts workers as torchrun's `--nproc-per-node gpu`, `cpu` and `auto` do (torch 2.13, distributed/run.py).

Inside an allocation Slurm says what a node has; elsewhere this machine is the node.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from hpc_elastic.cli.gpu_tool import ask_tool
from hpc_elastic.errors import UsageError
from hpc_elastic.hardware.accelerators import Ask, find_accelerators
from hpc_elastic.hardware.device_lists import select_devices

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
        where = "the allocation has no GPU that is known" if environ.get("SLURM_JOB_ID") else "there is no GPU here"
        raise UsageError(f"--nproc-per-node gpu, and {where}", tip="give a number, or cpu")
    return str(gpus or _count_cpus(environ))


def _count_gpus(environ: Mapping[str, str], ask: Ask, root: str) -> int:
    """Return the GPUs of a node; without a list of devices a GPU with MIG parts is one, as torch counts it."""
    for name in ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"):
        number = environ.get(name, "").rpartition(":")[2]  # the second one may be `a100:4`
        if number.isdecimal():
            return int(number)
    listing = find_accelerators(ask, root=root)
    seen = select_devices(environ, listing)
    if listing is not None and (seen is None or not seen.variables):
        return len(listing.devices)
    return 0 if seen is None else len(seen)


def _count_cpus(environ: Mapping[str, str]) -> int:
    """Return the CPUs of a node; in the shell of `salloc` Slurm has them in a form such as `16(x2),8`."""
    for name in ("SLURM_CPUS_ON_NODE", "SLURM_JOB_CPUS_PER_NODE"):
        if match := re.match(r"[1-9][0-9]*", environ.get(name, "")):
            return int(match[0])
    return len(os.sched_getaffinity(0))
