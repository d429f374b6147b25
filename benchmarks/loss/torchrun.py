"""The same losses under torchrun: whether and when the ranks that are left take their next step."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.loss import training
from benchmarks.loss.ours import LEFT, NODES, SETTLES_S
from benchmarks.loss.steps import NotInTimeError, now, wait_for_start
from tests.slurm_sandbox.cluster import Cluster

VICTIM = "node3"
STARTS_WITHIN_S = 90
PATIENCE_S = 120

Fault = Callable[[Cluster], Callable[[], None]]


def lose(slurm: Cluster, folder: Path, fault: Fault) -> float | None:
    """Seconds from the fault to the next step of the ranks that are left, None if they take none for a long time."""
    stamps = folder / "stamps"
    stamps.mkdir()
    slurm.submit(str(write_script(folder, stamps)))
    wait_for_start(stamps, NODES, after=0, within_s=STARTS_WITHIN_S, story=(folder / "torchrun.out").read_text)
    time.sleep(SETTLES_S)
    strike, at = fault(slurm), now()
    strike()
    try:
        return wait_for_start(stamps, LEFT, after=at, within_s=PATIENCE_S).stepped - at
    except NotInTimeError:
        return None


def write_script(folder: Path, stamps: Path) -> Path:
    torchrun = Path(sys.executable).parent / "torchrun"
    command = (
        f"srun --no-kill --kill-on-bad-exit=0 --wait=0 --cpu-bind=none {shlex.quote(str(torchrun))} "
        f"--nnodes={LEFT}:{NODES} --nproc-per-node=1 --max-restarts=3 --rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID "
        f'--rdzv-endpoint="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):29400" '
        f"{shlex.quote(training.__file__)}"
    )
    path = folder / "torchrun.sh"
    # Sharing off: with torch 2.13's default, workers read the last attempt's addresses and do not recover.
    path.write_text(
        f"#!/bin/bash\n#SBATCH --nodes={NODES} --ntasks-per-node=1 --no-kill\n"
        f"#SBATCH --output={folder}/torchrun.out --chdir={folder}\n"
        f"export OMP_NUM_THREADS=1 STAMPS={shlex.quote(str(stamps))} TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1\n{command}\n"
    )
    return path


def kill_agent(slurm: Cluster) -> Callable[[], None]:
    (pid,) = [pid for pid, line in slurm.processes(VICTIM).items() if "/torchrun " in line]
    return lambda: os.kill(pid, signal.SIGKILL)


def kill_everything(slurm: Cluster) -> Callable[[], None]:
    """The agent and its worker, as our guard does it; the agent first."""
    lines = slurm.processes(VICTIM).items()
    pids = [pid for word in ("/torchrun ", "training.py") for pid, line in lines if word in line]

    def strike() -> None:
        for pid in dict.fromkeys(pids):
            os.kill(pid, signal.SIGKILL)

    return strike


def cut_cable(slurm: Cluster) -> Callable[[], None]:
    return lambda: slurm.cut(VICTIM)
