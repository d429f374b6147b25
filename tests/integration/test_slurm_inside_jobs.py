"""Submitting from inside another job, from a shell full of Slurm's variables, and where jobs get no environment."""

from __future__ import annotations

import json
import shlex

import pytest

from tests.integration.conftest import Door, Run
from tests.integration.slurm_jobs import DIES, assert_over, wait_for_ranks, write_job
from tests.slurm_sandbox.cluster import Cluster

pytestmark = pytest.mark.slurm

SHOWS = "import json, os\nprint(json.dumps(dict(os.environ)))\n"
# What people and sites have in profiles; each would change our job, the commands' output, or which job they act on.
PROFILE = """
    SBATCH_EXPORT=NONE SBATCH_TIMELIMIT=1 SBATCH_ARRAY_INX=0-3 SBATCH_OUTPUT=/dev/null SBATCH_NO_REQUEUE=1
    SBATCH_OPEN_MODE=truncate SBATCH_GPUS_PER_NODE=2 SBATCH_WAIT=1 SLURM_NTASKS=7 SLURM_EXPORT_ENV=NONE
    SLURM_CPU_BIND=cores SLURM_HINT=nomultithread SLURM_STEP_NODELIST=nowhere[1-9] SQUEUE_FORMAT=%i
    SQUEUE_STATES=FAILED SACCT_FORMAT=JobID SCANCEL_INTERACTIVE=1 SLURM_TIME_FORMAT=relative SINFO_FORMAT=%N
"""


def inside(door: Door, slurm: Cluster, *arguments: str) -> str:
    """Runs a command of ours in a step of another job, on a compute node, and returns what it prints."""
    step = ["srun", "--overlap", f"--chdir={door.folder}", *door.command, *arguments]
    line = " ".join(map(shlex.quote, step))
    outer = ("salloc", "--quiet", "--nodes=1", "--ntasks=1", "--gpus-per-node=1", "--time=5", "--job-name=outer")
    environ = {**door.environ, "TMPDIR": "/tmp"}
    return slurm.run(*outer, "bash", "-c", line, environment=environ, cwd=door.folder).stdout


@pytest.mark.mirrored
def test_a_job_that_is_submitted_from_inside_another_is_its_own(slurm_door: Door, slurm: Cluster) -> None:
    write_job(slurm_door, SHOWS, nodes="2")
    told = json.loads(inside(slurm_door, slurm, "submit", "job.yaml", "--json", "--set", "start=spawn").splitlines()[0])
    run = Run.at(slurm_door.folder / told["run_dir"])
    slurm.wait_for_job(told["job_id"], "COMPLETED")
    assert_over(run, "SUCCEEDED", 0)
    shown = [json.loads(run.stdout(1, rank)) for rank in range(4)]
    assert [one["SLURM_JOB_ID"] for one in shown] == [told["job_id"]] * 4
    assert [one["SLURM_JOB_NAME"] for one in shown] == ["probe"] * 4
    assert not any("CUDA_VISIBLE_DEVICES" in one for one in shown), "the outer job's GPU"


def test_the_commands_act_on_a_run_and_not_on_the_job_in_which_they_are_called(
    slurm_door: Door, slurm: Cluster
) -> None:
    write_job(slurm_door, DIES, nodes="2")
    run = slurm_door.submit("job.yaml")
    wait_for_ranks(run, 4)
    assert json.loads(inside(slurm_door, slurm, "status", "--json", run.job_id))["state"] == "RUNNING"
    assert "CANCELLED" in inside(slurm_door, slurm, "cancel", run.job_id)
    assert_over(run, "CANCELLED", 10)


def test_variables_of_a_profile_change_no_job_and_no_answer(slurm_door: Door, slurm: Cluster) -> None:
    slurm_door.environ |= dict(setting.split("=", 1) for setting in PROFILE.split())
    write_job(slurm_door, SHOWS, nodes="2", more="env: {MINE: '${OF_SHELL}'}")
    slurm_door.environ["OF_SHELL"] = "kept"
    run = slurm_door.submit("job.yaml", wait=True)
    assert_over(run, "SUCCEEDED", 0)
    shown = [json.loads(run.stdout(1, rank)) for rank in range(4)]
    assert [one["MINE"] for one in shown] == ["kept"] * 4
    assert json.loads(slurm_door.run("status", "--json", run.job_id).stdout)["state"] == "SUCCEEDED"


@pytest.mark.variant(of="test_variables_of_a_profile_change_no_job_and_no_answer")
@pytest.mark.mirrored
def test_a_site_that_exports_nothing_runs_jobs_as_well(slurm_door: Door, slurm: Cluster) -> None:
    where = " ".join(f"{name}={value}" for name, value in slurm.environment.items() if name.endswith("PATH"))
    setup = f"setup: ['export OF_SETUP=here {where}']"  # a Slurm in a place of its own, as a site's module has it
    write_job(slurm_door, SHOWS, nodes="2", more=f"sbatch: {{export: NONE}}\n{setup}")
    slurm_door.environ["OF_SHELL"] = "left behind"
    run = slurm_door.submit("job.yaml", wait=True)
    assert_over(run, "SUCCEEDED", 0)
    shown = [json.loads(run.stdout(1, rank)) for rank in range(4)]
    assert [one["OF_SETUP"] for one in shown] == ["here"] * 4
    assert not any("OF_SHELL" in one for one in shown)
