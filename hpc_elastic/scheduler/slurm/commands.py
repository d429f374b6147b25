"""The Slurm commands that the login side runs, as argument lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from hpc_elastic.job_ids import split_task_id
from hpc_elastic.scheduler.environment import scrub_environment

# A field with no width is printed whole; without the colon it would be cut at 20 characters.
QUEUE_FIELDS = ("JobID", "JobArrayID", "State", "RestartCnt", "exit_code", "NodeList", "Reason")
ACCOUNTING_FIELDS = ("JobIDRaw", "JobID", "State", "ExitCode", "NodeList", "Reason")
SEPARATOR = "|"

# By them Slurm's commands log in where no munge daemon or socket at its usual place does it for them: a token of
# auth/jwt, and the key, the key set or the socket of auth/slurm (https://slurm.schedmd.com/authentication.html).
LOGIN_VARIABLES = ("SLURM_JWT", "SLURM_SACK_KEY", "SLURM_SACK_JWKS", "SLURM_SACK_SOCKET")

# They change what the commands show, or whom they touch, and come from people's profiles.
_COMMAND_VARIABLES = ("SQUEUE_", "SACCT_", "SCANCEL_", "SINFO_", "SCONTROL_")


def sbatch_command(script: str) -> list[str]:
    """Hands a script over; all it needs stands in the script."""
    return ["sbatch", "--parsable", script]


def squeue_command(job_ids: Sequence[str]) -> list[str]:
    """Asks the controller what it knows of jobs, finished ones too (for MinJobAge, 300 s by default)."""
    fields = ",".join(f"{field}:{SEPARATOR}" for field in QUEUE_FIELDS)
    jobs = f"--jobs={','.join(job_ids)}"
    return ["squeue", "--noheader", "--all", "--array", "--states=all", jobs, f"--Format={fields}"]


def batched_ids(job_ids: Sequence[str]) -> list[str]:
    """What to ask for in one question: of an array of which several tasks are wanted, the whole."""
    arrays = Counter(split[0] for job_id in job_ids if (split := split_task_id(job_id)))
    wanted = (split[0] if (split := split_task_id(job_id)) and arrays[split[0]] > 1 else job_id for job_id in job_ids)
    return list(dict.fromkeys(wanted))


def sacct_command(job_ids: Sequence[str]) -> list[str]:
    """Asks the accounting data base about jobs that the controller has forgotten."""
    fields = ",".join(ACCOUNTING_FIELDS)
    return [
        "sacct",
        "--noheader",
        "--allocations",
        "--parsable2",
        f"--delimiter={SEPARATOR}",
        f"--jobs={','.join(job_ids)}",
        f"--format={fields}",
    ]


def scancel_command(job_id: str) -> list[str]:
    """Ends a job, whatever state it is in."""
    return ["scancel", job_id]


def scancel_pending_command(job_id: str) -> list[str]:
    """Takes a job, or those tasks of an array, out of the queue that still wait in it."""
    return ["scancel", "--state=PENDING", job_id]


def requeue_command(job_id: str) -> list[str]:
    """Has a running job stopped and started again."""
    return ["scontrol", "requeue", job_id]


def ping_command() -> list[str]:
    """Asks whether a controller answers; rarely more than a line, and never about a job."""
    return ["scontrol", "ping"]


def sinfo_command() -> list[str]:
    """The cheapest question that only a living controller answers."""
    return ["sinfo", "--noheader", "--format=%P"]


def submission_environment(environ: Mapping[str, str], directives: Iterable[str]) -> dict[str, str]:
    """The environment for sbatch, which exports it to the job; the job's script drops what has logged sbatch in.

    Args:
        environ: the submitting shell's.
        directives: long option names that the script sets; sbatch lets a variable outrank them, so
            theirs are removed.
    """
    outranked = {f"SBATCH_{directive.upper().replace('-', '_')}" for directive in directives}
    login = {name: environ[name] for name in LOGIN_VARIABLES if name in environ}
    kept = {name: value for name, value in scrub_environment(environ).items() if name not in outranked}
    return _for_one_cluster(kept | login)


def query_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for the other commands, with their plain output."""
    kept = {name: value for name, value in environ.items() if not name.startswith(_COMMAND_VARIABLES)}
    return _for_one_cluster(kept)


def _for_one_cluster(environ: Mapping[str, str]) -> dict[str, str]:
    """Lets all commands ask the cluster that sbatch would take: SBATCH_CLUSTERS is read by sbatch alone."""
    named = environ.get("SBATCH_CLUSTERS")
    kept = {name: value for name, value in environ.items() if name != "SBATCH_CLUSTERS"}
    return kept | {"SLURM_CLUSTERS": named} if named else kept
