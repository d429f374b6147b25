"""The Slurm commands that the login side runs, as argument lists."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hpc_elastic.job_ids import split_task_id
from hpc_elastic.scheduler.environment import scrub_environment

# squeue prints a field without a width in full; without the colon it would cut the field at 20 characters.
QUEUE_FIELDS = ("JobID", "JobArrayID", "State", "RestartCnt", "exit_code", "NodeList", "Reason")
ACCOUNTING_FIELDS = ("JobIDRaw", "JobID", "State", "ExitCode", "NodeList", "Reason")
OUTLOOK_FIELDS = (
    "State",
    "RestartCnt",
    "TimeLeft",
    "TimeUsed",
    "StartTime",
    "EndTime",
    "PreemptTime",
    "Reservation",
    "Reason",
)
QUEUE_IDENTITY_FIELDS = ("Name", "WorkDir")
ACCOUNTING_IDENTITY_FIELDS = ("JobName", "WorkDir")
SUBMITTED_FIELDS = ("JobArrayID", "WorkDir")
EXCLUDED_FIELD = "ExcNodes"
SEPARATOR = "|"

# Slurm's commands authenticate with them where there is no munge daemon or no socket at its usual place: a token of
# auth/jwt, and the key, the key set or the socket of auth/slurm (https://slurm.schedmd.com/authentication.html).
LOGIN_VARIABLES = ("SLURM_JWT", "SLURM_SACK_KEY", "SLURM_SACK_JWKS", "SLURM_SACK_SOCKET")

# Slurm's plugins for GPUs set them, by the kind of the node's (gres.conf(5), `Flags`).
_DEVICES = frozenset({"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "GPU_DEVICE_ORDINAL"})

# They name the Slurm that all commands talk to.
_SELECTING = ("SLURM_CLUSTERS", "SLURM_CONF", "SLURM_CONF_SERVER")

_CLUSTERS = ("SLURM_CLUSTERS", "SBATCH_CLUSTERS")

# Prefixes of variables in people's profiles that change what the commands print, or which jobs they act on.
_COMMAND_VARIABLES = ("SQUEUE_", "SACCT_", "SCANCEL_", "SINFO_", "SCONTROL_", "SLURM_TIME_FORMAT")


def sbatch_command(script: str) -> list[str]:
    """Build the sbatch command of a script; every option is in the script."""
    return ["sbatch", "--parsable", script]


def sbatch_after_command(script: str, job_id: str, *, is_reserved: bool = True) -> list[str]:
    """Build the sbatch command of a script that starts when a job is over, however that ended.

    Args:
        script: the script's path.
        job_id: the job before.
        is_reserved: whether the job may start in the reservation that the script asks for, if it asks for one.
    """
    unreserved = () if is_reserved else ("--reservation=",)
    return ["sbatch", "--parsable", f"--dependency=afterany:{job_id}", *unreserved, script]


def sbatch_test_command(script: str, *, exclude: Sequence[str]) -> list[str]:
    """Build the sbatch command that asks whether a script could ever run without these nodes, and submits nothing."""
    return ["sbatch", "--test-only", f"--exclude={','.join(exclude)}", script]


def excluded_command(job_id: str) -> list[str]:
    """Build the squeue command that asks which nodes a job, or one task of an array, must not get."""
    return [
        "squeue",
        "--noheader",
        "--all",
        "--array",
        "--states=all",
        f"--jobs={job_id}",
        f"--Format={EXCLUDED_FIELD}:{SEPARATOR}",
    ]


def exclude_command(job_id: str, nodes: Sequence[str]) -> list[str]:
    """Build the scontrol command that keeps a pending job from these nodes, and from no others."""
    return ["scontrol", "update", f"JobId={job_id}", f"ExcNodeList={','.join(nodes)}"]


def leave_reservation_command(job_id: str) -> list[str]:
    """Build the scontrol command that lets a pending job start without its reservation."""
    return ["scontrol", "update", f"JobId={job_id}", "ReservationName="]


def reservation_command(name: str) -> list[str]:
    """Build the scontrol command that prints one reservation."""
    return ["scontrol", "--oneliner", "show", "reservation", name]


def comment_command(job_id: str, text: str) -> list[str]:
    """Build the scontrol command that replaces a job's comment."""
    return ["scontrol", "update", f"JobId={job_id}", f"Comment={text}"]


def squeue_command(job_ids: Sequence[str]) -> list[str]:
    """Build the squeue command that asks the controller about jobs, also ended ones (MinJobAge, by default 300 s)."""
    fields = ",".join(f"{field}:{SEPARATOR}" for field in QUEUE_FIELDS)
    jobs = f"--jobs={','.join(job_ids)}"
    return ["squeue", "--noheader", "--all", "--array", "--states=all", jobs, f"--Format={fields}"]


def submitted_command(user_id: int, *, states: str) -> list[str]:
    """Build the squeue command that asks for the working directories of a user's jobs in some states."""
    fields = ",".join(f"{field}:{SEPARATOR}" for field in SUBMITTED_FIELDS)
    return ["squeue", "--noheader", "--all", f"--states={states}", f"--user={user_id}", f"--Format={fields}"]


def outlook_command(job_id: str) -> list[str]:
    """Build the squeue command that asks the controller about the end of one job, or of one task of an array."""
    fields = ",".join(f"{field}:{SEPARATOR}" for field in OUTLOOK_FIELDS)
    return ["squeue", "--noheader", "--all", "--array", "--states=all", f"--jobs={job_id}", f"--Format={fields}"]


def host_command(job_id: str) -> list[str]:
    """Build the scontrol command that asks the controller what became of the node of a job's script.

    squeue has a field for the time of a resize, and shows it as INVALID (22.05 and 24.11).
    """
    return ["scontrol", "--oneliner", "show", "job", job_id]


def batched_ids(job_ids: Sequence[str]) -> list[str]:
    """Return the ids to ask for in one question: if several tasks of an array are wanted, the array's id instead."""
    arrays = Counter(split[0] for job_id in job_ids if (split := split_task_id(job_id)))
    wanted = (split[0] if (split := split_task_id(job_id)) and arrays[split[0]] > 1 else job_id for job_id in job_ids)
    return list(dict.fromkeys(wanted))


def sacct_command(job_ids: Sequence[str]) -> list[str]:
    """Build the sacct command that asks the accounting database about jobs that the controller has forgotten."""
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


def squeue_identity_command(job_id: str) -> list[str]:
    """Build the squeue command that asks the controller for the name and the working directory of a job."""
    fields = ",".join(f"{field}:{SEPARATOR}" for field in QUEUE_IDENTITY_FIELDS)
    return ["squeue", "--noheader", "--all", "--states=all", f"--jobs={job_id}", f"--Format={fields}"]


def task_number_command(task_id: str) -> list[str]:
    """Build the squeue command that asks the controller for the own job number of an array's task."""
    return ["squeue", "--noheader", "--all", "--states=all", f"--jobs={task_id}", "--Format=JobID"]


def sacct_identity_command(job_id: str) -> list[str]:
    """Build the sacct command that asks accounting for the name and the working directory of a job."""
    return [
        "sacct",
        "--noheader",
        "--allocations",
        "--parsable2",
        f"--delimiter={SEPARATOR}",
        f"--jobs={job_id}",
        f"--format={','.join(ACCOUNTING_IDENTITY_FIELDS)}",
    ]


def scancel_command(job_id: str) -> list[str]:
    """Build the scancel command that ends a job in any state."""
    return ["scancel", job_id]


def scancel_pending_command(job_id: str) -> list[str]:
    """Build the scancel command that cancels a pending job, or the pending tasks of an array."""
    return ["scancel", "--state=PENDING", job_id]


def requeue_command(job_id: str) -> list[str]:
    """Build the scontrol command that requeues a running job."""
    return ["scontrol", "requeue", job_id]


def ping_command() -> list[str]:
    """Build the scontrol command that asks whether a controller answers; its output is short and names no job."""
    return ["scontrol", "ping"]


def config_command() -> list[str]:
    """Build the scontrol command that prints the settings of the cluster."""
    return ["scontrol", "show", "config"]


def partitions_command() -> list[str]:
    """Build the scontrol command that prints every partition, one a line."""
    return ["scontrol", "--oneliner", "show", "partition"]


def qos_command() -> list[str]:
    """Build the sacctmgr command that prints whom each QOS preempts, and what it grants a job that is preempted."""
    fields = "format=Name,Preempt,PreemptMode,GraceTime"
    return ["sacctmgr", "--noheader", "--parsable2", "--readonly", "show", "qos", fields]


def sinfo_command() -> list[str]:
    """Build the sinfo command that is the cheapest question that only a running controller answers."""
    return ["sinfo", "--noheader", "--format=%P"]


def submission_environment(environ: Mapping[str, str], directives: Iterable[str]) -> dict[str, str]:
    """Return the environment for sbatch, which exports it to the job; the job's script removes `LOGIN_VARIABLES`.

    Inside of another job, what Slurm has set for that one is left behind too: its GPUs, and its own temporary folder,
    which is gone when it is over.

    Args:
        environ: the submitting shell's.
        directives: long option names that the script sets; sbatch lets a variable override them, so
            the variables of these options are removed.
    """
    outranked = {f"SBATCH_{directive.upper().replace('-', '_')}" for directive in directives}
    login = {name: environ[name] for name in LOGIN_VARIABLES if name in environ}
    kept = {name: value for name, value in scrub_environment(environ).items() if name not in outranked}
    if outer := environ.get("SLURM_JOB_ID"):
        kept = {name: value for name, value in kept.items() if not _is_of_job(name, value, outer)}
    return _for_one_cluster(kept | login)


def _is_of_job(name: str, value: str, job_id: str) -> bool:
    """Return whether a variable is about the GPUs of a job, or names a temporary folder by the job's number."""
    return name in _DEVICES or (name == "TMPDIR" and job_id in re.findall("[0-9]+", value))


def query_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for the other commands, without variables that change their output."""
    kept = {name: value for name, value in environ.items() if not name.startswith(_COMMAND_VARIABLES)}
    return _for_one_cluster(kept)


def selection(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that name the Slurm of sbatch and of the other commands; none where there is one only."""
    chosen = _for_one_cluster(environ)
    return {name: chosen[name] for name in _SELECTING if name in chosen}


def as_submitted(environ: Mapping[str, str], submission: Mapping[str, Any], *, host: str) -> dict[str, str]:
    """Return the environment in which commands ask the cluster that got a run's job, whichever this shell names.

    Jobs of two clusters may have the same id: what one says of it must not be taken for the other's word. Without a
    name in the record the job went to the cluster of the submitting host, which another host need not know.

    Args:
        environ: this shell's.
        submission: the run's record; empty if there is none.
        host: this machine's name.
    """
    selected = submission.get("selected_by")
    if not isinstance(selected, Mapping):
        return dict(environ)
    if named := selected.get("SLURM_CLUSTERS"):
        chosen = {"SLURM_CLUSTERS": str(named)}
    elif submission.get("host") == host:
        chosen = {}
    else:
        return dict(environ)
    return {name: value for name, value in environ.items() if name not in _CLUSTERS} | chosen


def _for_one_cluster(environ: Mapping[str, str]) -> dict[str, str]:
    """Make all commands use the cluster that sbatch would use: SBATCH_CLUSTERS is read by sbatch alone."""
    named = environ.get("SBATCH_CLUSTERS")
    kept = {name: value for name, value in environ.items() if name != "SBATCH_CLUSTERS"}
    return kept | {"SLURM_CLUSTERS": named} if named else kept
