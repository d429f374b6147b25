"""Removes another job's identity from the environment that a job inherits from the submitting shell."""

from __future__ import annotations

from collections.abc import Mapping

from hpc_elastic.job_ids import ARRAY_MARK, TIME_LEFT_VARIABLE

_PREFIXES = (
    "SLURM_",
    "SBATCH_",
    "SRUN_",
    "PMI_",
    "PMIX_",
    "MASTER_",
    "TORCHELASTIC_",
    "HPC_ELASTIC_LOCAL_",
    "HPC_ELASTIC_HOST_",
    "HPC_ELASTIC_STAGE",
    ARRAY_MARK,
    TIME_LEFT_VARIABLE,
)
_NAMES = frozenset(
    {
        "PMI",
        "PMIX",
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "ROLE_NAME",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
        "HPC_ELASTIC_RUN_DIR",
        "HPC_ELASTIC_ATTEMPT",
        "HPC_ELASTIC_AGENT",
    }
)
# How to reach Slurm, and which account to charge: people and sites set these in profiles, no job ever does.
ALLOWED = frozenset(
    {
        "SLURM_CONF",
        "SLURM_CONF_SERVER",
        "SLURM_CLUSTERS",
        "SBATCH_ACCOUNT",
        "SBATCH_CLUSTERS",
        "SBATCH_CONSTRAINT",
        "SBATCH_PARTITION",
        "SBATCH_QOS",
        "SBATCH_RESERVATION",
    }
)


def options_of_shell(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the options that sbatch takes from variables of the submitting shell, as `account` from SBATCH_ACCOUNT.

    Those of a job go before them: `submission_environment` removes the variables that the script would contradict.
    """
    names = {name: name.removeprefix("SBATCH_").lower() for name in ALLOWED if name.startswith("SBATCH_")}
    return {option: environ[name] for name, option in sorted(names.items()) if environ.get(name)}


def scrub_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without variables that name a rank, a step or a job, or that would override the plan."""
    return {name: value for name, value in environ.items() if not _leaks(name)}


def _leaks(name: str) -> bool:
    return name not in ALLOWED and (name in _NAMES or name.startswith(_PREFIXES))
