"""What we write into scripts is understood by the real Slurm, option by option."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slurm_sandbox.cluster import Cluster
from tests.test_slurm_reference import named

# For each option of sbatch that we use: what it is given, and what it needs beside it.
GIVEN = {
    "--array": ("--array=0-3%2",),
    "--cpus-per-task": ("--cpus-per-task=2",),
    "--exclude": ("--exclude=node[3-4]",),
    "--exclusive": ("--exclusive",),
    "--gpus-per-node": ("--gpus-per-node=2",),
    "--gres": ("--gres=gpu:2",),
    "--job-name": ("--job-name=probe",),
    "--mem": ("--mem=100M",),
    "--mem-per-cpu": ("--mem-per-cpu=100M",),
    "--mem-per-gpu": ("--mem-per-gpu=100M", "--gpus-per-node=1"),
    "--no-kill": ("--no-kill",),
    "--no-requeue": ("--no-requeue",),
    "--nodes": ("--nodes=2-4",),
    "--ntasks-per-node": ("--ntasks-per-node=1", "--nodes=4"),
    "--open-mode": ("--open-mode=append",),
    "--output": ("--output=%j.out",),
    "--parsable": ("--parsable",),
    "--requeue": ("--requeue",),
    "--dependency": ("--dependency=singleton",),  # that after a job needs one; the chains of jobs have it
    "--test-only": (),  # which all of these tries have
    "--signal": ("--signal=B:USR2@60",),
    "--time": ("--time=1-02:03:04",),
}


def test_every_option_that_we_use_is_tried() -> None:
    assert set(GIVEN) == named("sbatch")


@pytest.mark.every_slurm
@pytest.mark.parametrize("option", GIVEN)
def test_sbatch_accepts_the_option(option: str, slurm: Cluster) -> None:
    done = slurm.run("sbatch", "--test-only", *GIVEN[option], "--wrap=true", check=False)
    assert done.returncode == 0, done.stderr
    assert "to start at" in done.stderr


def test_sbatch_refuses_what_is_none(slurm: Cluster) -> None:
    done = slurm.run("sbatch", "--test-only", "--no-such-option", "--wrap=true", check=False)
    assert done.returncode != 0
    assert "unrecognized option" in done.stderr


@pytest.mark.every_slurm
def test_a_step_has_the_variables_that_agents_read(slurm: Cluster, tmp_path: Path) -> None:
    """Those of an array's task; some need a requeue, a heterogeneous job, a reservation or GPUs."""
    output = tmp_path / "environment"
    job_id = slurm.submit("--array=0", "--nodes=2", "--ntasks-per-node=1", f"--output={output}", "--wrap=env; srun env")
    slurm.wait_for_job(job_id, "COMPLETED")
    seen = {line.partition("=")[0] for line in output.read_text().splitlines()}
    elsewhere = {"SLURM_RESTART_COUNT", "SLURM_HET_SIZE", "SLURM_JOB_RESERVATION"}
    elsewhere |= {name for name in named("Read") if "GPUS" in name}
    assert named("Read") - elsewhere <= seen
