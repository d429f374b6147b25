"""Whether tests marked `gpu` can run here: whole runs need hpc_elastic's own needs beside torch, and no Slurm."""

from __future__ import annotations

import glob
import subprocess
import sys

import pytest

HAS_NCCL = (
    "import torch, torch.distributed as d; print(int(torch.cuda.is_available() and d.is_nccl_available()), end='')"
)


def require_gpu() -> None:
    """Skip without a GPU, at once, or without a torch that can use it with NCCL."""
    if not glob.glob("/dev/nvidia[0-9]*") and not glob.glob("/dev/kfd"):
        pytest.skip("there is no GPU on this machine: no /dev/nvidia0 and no /dev/kfd")
    found = subprocess.run([sys.executable, "-c", HAS_NCCL], capture_output=True, text=True, check=False)
    if found.stdout != "1":
        pytest.skip(f"torch finds no GPU or has no NCCL here: {found.stderr[-300:] or 'is_available() is False'}")
