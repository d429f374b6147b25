"""A batch script of before, moved in and submitted on the real Slurm: the same world, the same arguments."""

from __future__ import annotations

import pytest

from tests.integration.conftest import Door
from tests.integration.slurm_jobs import write_job

pytestmark = pytest.mark.slurm

SCRIPT = """\
import os, sys
print(os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["OF_SETUP"], *sys.argv[1:], flush=True)
"""
OLD = """\
#!/bin/bash
#SBATCH --job-name=old
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --time=10
#SBATCH --output=old-%j.out

set -euo pipefail
export OF_SETUP="set in $(echo setup)"
nodes=( $(scontrol show hostnames "$SLURM_JOB_NODELIST") )
head_node=${nodes[0]}
EPOCHS=3
ARGS=(--epochs $EPOCHS --name "two words" --tag "${SLURM_JOB_NAME:-none}")

srun torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint "$head_node:29500" \\
    train.py "${ARGS[@]}" --price '$5' 2>&1 | tee log.txt
"""


def test_an_old_script_is_moved_in_and_runs(slurm_door: Door) -> None:
    write_job(slurm_door, SCRIPT, nodes="2", workers="2")  # the site and the environment that the tests use
    own = (slurm_door.folder / "job.yaml").read_text()
    (slurm_door.folder / "train.py").write_text(SCRIPT)
    slurm_door.write("old.sbatch", OLD)
    told = slurm_door.run("init", "--from", "old.sbatch", "-o", "moved.yaml").stderr
    assert "not carried over" not in told
    keys = [line for line in own.splitlines() if line.startswith(("site:", "python:"))]
    moved = slurm_door.folder / "moved.yaml"
    kept = [line for line in moved.read_text().splitlines() if not line.startswith("python:")]
    moved.write_text("\n".join([*kept, *keys]) + "\n")

    run = slurm_door.submit("moved.yaml", wait=True)
    assert run.result()["state"] == "SUCCEEDED"
    said = [run.stdout(1, rank) for rank in range(4)]
    assert said == [f"{rank} 4 set in setup --epochs 3 --name two words --tag old --price $5\n" for rank in range(4)]
