"""Counts workers as torchrun's `--nproc-per-node gpu`, `cpu` and `auto` do (torch 2.13, distributed/run.py).

Inside an allocation Slurm says what a node has; elsewhere this machine is the node.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping

from hpc_elastic.errors import UsageError

WORDS = ("gpu", "cpu", "auto")
_LIST_GPUS = ["nvidia-smi", "-L"]
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def count_workers(text: str, environ: Mapping[str, str], *, list_gpus: Callable[[], str] | None = None) -> str:
    """Return the number of workers of a node as text.

    Args:
        text: `gpu`, `cpu`, `auto` (a worker for each GPU, else for each CPU), or anything else, which is returned.
        environ: the environment, with Slurm's variables inside an allocation.
        list_gpus: returns what `nvidia-smi -L` prints, "" if there is no such program.

    Raises:
        UsageError: `gpu`, and there is none; or another device of torchrun's.
    """
    if text == "xpu":
        raise UsageError("--nproc-per-node xpu is not supported", tip="give the number of devices of a node")
    if text not in WORDS:
        return text
    gpus = 0 if text == "cpu" else _count_gpus(environ, list_gpus or _list_gpus)
    if text == "gpu" and not gpus:
        where = "the allocation has no GPU that is known" if environ.get("SLURM_JOB_ID") else "there is no GPU here"
        raise UsageError(f"--nproc-per-node gpu, and {where}", tip="give a number, or cpu")
    return str(gpus or _count_cpus(environ))


def _count_gpus(environ: Mapping[str, str], list_gpus: Callable[[], str]) -> int:
    for name in ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"):
        number = environ.get(name, "").rpartition(":")[2]  # the second one may be `a100:4`
        if number.isdecimal():
            return int(number)
    listed = sum(line.startswith("GPU ") for line in list_gpus().splitlines())
    for name in _VISIBLE:
        if (value := environ.get(name)) is not None:
            words = [word for word in value.split(",") if word.strip() not in ("", "-1", "NoDevFiles")]
            return min(len(words), listed) if listed else len(words)
    return listed


def _count_cpus(environ: Mapping[str, str]) -> int:
    """Return the CPUs of a node; in the shell of `salloc` Slurm has them in a form such as `16(x2),8`."""
    for name in ("SLURM_CPUS_ON_NODE", "SLURM_JOB_CPUS_PER_NODE"):
        if match := re.match(r"[1-9][0-9]*", environ.get(name, "")):
            return int(match[0])
    return len(os.sched_getaffinity(0))


def _list_gpus() -> str:
    try:
        done = subprocess.run(_LIST_GPUS, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
