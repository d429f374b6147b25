"""Reads what Slurm tells a shell or a script inside an allocation of what that has; pure.

Source: the output environment variables of salloc(1) and sbatch(1).
"""

from __future__ import annotations

import re
from collections.abc import Mapping


def count_nodes(environ: Mapping[str, str]) -> str | None:
    """Return the number of nodes as Slurm gives it; None outside of an allocation."""
    return environ.get("SLURM_JOB_NUM_NODES") or None


def count_parts(environ: Mapping[str, str]) -> str | None:
    """Return the number of parts of a heterogeneous job as Slurm gives it; None of any other job."""
    return environ.get("SLURM_HET_SIZE") or None


def count_gpus(environ: Mapping[str, str]) -> int | None:
    """Return the number of GPUs of a node; None if Slurm does not say it."""
    for name in ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"):
        number = environ.get(name, "").rpartition(":")[2]  # the second one may be `a100:4`
        if number.isdecimal():
            return int(number)
    return None


def count_cpus(environ: Mapping[str, str]) -> int | None:
    """Return the number of CPUs of a node, of the first where they differ; None if Slurm does not say it.

    In the shell of `salloc` it has a form such as `16(x2),8`.
    """
    for name in ("SLURM_CPUS_ON_NODE", "SLURM_JOB_CPUS_PER_NODE"):
        if match := re.match(r"[1-9][0-9]*", environ.get(name, "")):
            return int(match[0])
    return None
