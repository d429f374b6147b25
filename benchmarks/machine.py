"""What the figures were taken on."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any


def describe() -> dict[str, Any]:
    """Processor, cores, memory and the versions of what takes part."""
    import psutil

    return {
        "processor": processor(Path("/proc/cpuinfo").read_text()),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "linux": platform.release(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "slurm": slurm_version(),
        "numpy": has_numpy(),
    }


def processor(cpuinfo: str) -> str:
    """The model that /proc/cpuinfo names."""
    found = re.search(r"^model name\s*: (.+)$", cpuinfo, re.M)
    return found.group(1).strip() if found else platform.machine()


def slurm_version() -> str | None:
    try:
        return subprocess.run(["slurmctld", "-V"], capture_output=True, text=True).stdout.strip() or None
    except OSError:
        return None


def has_numpy() -> str | None:
    """Its version if the training finds it; torch imports it then, and starts a thread of its own more."""
    try:
        return version("numpy")
    except ModuleNotFoundError:
        return None
