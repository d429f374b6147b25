from __future__ import annotations

import pytest

from hpc_elastic.scheduler.environment import scrub_environment
from hpc_elastic.scheduler.slurm import commands


@pytest.mark.parametrize(
    "name",
    [
        *("SLURM_JOB_ID", "SLURM_PROCID", "SLURM_EXPORT_ENV", "SBATCH_TIMELIMIT", "SBATCH_NO_KILL", "SRUN_DEBUG"),
        *("PMI_RANK", "PMIX_RANK", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"),
        *("TORCHELASTIC_RUN_ID", "ROLE_RANK", "HPC_ELASTIC_RUN_DIR", "HPC_ELASTIC_LOCAL_JOB_ID"),
        "HPC_ELASTIC_ARRAY_MARK",
    ],
)
def test_scrub_removes_another_jobs_identity(name: str) -> None:
    assert scrub_environment({name: "1", "PATH": "/bin"}) == {"PATH": "/bin"}


@pytest.mark.parametrize("name", ["SLURM_CONF", "SBATCH_ACCOUNT", "SBATCH_QOS", "PATH", "OMP_NUM_THREADS", "RANKING"])
def test_scrub_keeps_what_names_no_job(name: str) -> None:
    assert scrub_environment({name: "1"}) == {name: "1"}


def test_what_slurm_has_set_for_the_job_around_us_reaches_no_job_of_ours() -> None:
    of_outer = {"CUDA_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": "0", "TMPDIR": "/scratch/slurm-job.417/tmp"}
    assert commands.submission_environment({**of_outer, "SLURM_JOB_ID": "417"}, []) == {}
    assert commands.submission_environment(of_outer, []) == of_outer  # a login node's own
    elsewhere = {"TMPDIR": "/scratch/project_4178/tmp"}
    assert commands.submission_environment({**elsewhere, "SLURM_JOB_ID": "417"}, []) == elsewhere


@pytest.mark.parametrize("name", commands.LOGIN_VARIABLES)
def test_what_logs_in_to_slurm_reaches_its_commands_and_no_other_process(name: str) -> None:
    environ = {name: "secret", "SLURM_JOB_ID": "7"}
    assert commands.submission_environment(environ, []) == {name: "secret"}
    assert commands.query_environment(environ)[name] == "secret"
    assert scrub_environment(environ) == {}  # for the agents and workers of this machine
