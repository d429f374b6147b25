"""What Slurm's commands answer: from exit status, output and error output to values."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hpc_elastic.errors import SchedulerError
from hpc_elastic.hostlist import expand_hostlist
from hpc_elastic.job_ids import split_task_id
from hpc_elastic.scheduler.protocol import JobState, JobStatus
from hpc_elastic.scheduler.slurm.commands import ACCOUNTING_FIELDS, QUEUE_FIELDS, SEPARATOR
from hpc_elastic.scheduler.slurm.words import find_tip, slurm_words

# job_state_string() of Slurm 22.05 to 24.05, as far as the words are not ours.
_STATES = {
    "CONFIGURING": JobState.PENDING,  # its nodes are booting
    "REQUEUED": JobState.PENDING,
    "REQUEUE_FED": JobState.PENDING,
    "REQUEUE_HOLD": JobState.PENDING,
    "SPECIAL_EXIT": JobState.PENDING,
    "RESV_DEL_HOLD": JobState.PENDING,
    "STAGE_OUT": JobState.COMPLETING,
    "BOOT_FAIL": JobState.NODE_FAIL,
    "DEADLINE": JobState.TIMEOUT,
    "OUT_OF_MEMORY": JobState.FAILED,
    "REVOKED": JobState.CANCELLED,
    "LAUNCH_FAILED": JobState.FAILED,
    "RECONFIG_FAIL": JobState.FAILED,
}
# Of an array's tasks, the one that is furthest from a good end stands for all.
_URGENCY = (
    JobState.RUNNING,
    JobState.COMPLETING,
    JobState.PENDING,
    JobState.NODE_FAIL,
    JobState.TIMEOUT,
    JobState.FAILED,
    JobState.PREEMPTED,
    JobState.CANCELLED,
    JobState.GONE,
    JobState.COMPLETED,
)
_JOB_ID = re.compile(r"[0-9]+(?:_[0-9]+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOutput:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


def is_job_id(text: str) -> bool:
    """Whether Slurm could have given this id to a job or an array's task; other ids spoil a batched question."""
    return _JOB_ID.fullmatch(text) is not None


def parse_submission(output: CommandOutput) -> str:
    """The job id that `sbatch --parsable` prints, as `id` or `id;cluster`.

    Raises:
        SchedulerError: the job was refused, in Slurm's own words.
    """
    if output.returncode:
        words = slurm_words(output.stderr)
        raise SchedulerError(f"sbatch refused the job: {words}", tip=find_tip(words))
    job_id = output.stdout.strip().partition(";")[0]
    if not is_job_id(job_id):
        raise SchedulerError(f"sbatch ended well, but its output {output.stdout!r} is no job id")
    return job_id


def parse_queue(output: CommandOutput, job_ids: Sequence[str]) -> dict[str, JobStatus]:
    """Those of the jobs that the controller knows, from `squeue`.

    Raises:
        SchedulerError: the controller does not answer.
    """
    if output.returncode:
        words = slurm_words(output.stderr)
        if "Invalid job id specified" in words:  # said only when a single id is asked for
            return {}
        raise SchedulerError(f"squeue does not answer: {words}", tip=find_tip(words))
    rows = [_queue_status(row) for row in _rows(output.stdout, QUEUE_FIELDS)]
    return _by_id(rows, job_ids)


def nodes_left(status: JobStatus | None) -> tuple[str, ...] | None:
    """The nodes that a running job still has; None if this cannot be told.

    Slurm (22.05) takes a node out of a job that runs with --no-kill in the moment when it sets the node
    DOWN, and never gives it back, though the node may be IDLE a second later. The node's own state says
    less: with FAIL, which an administrator sets, the job goes on there. A job that ends gives its nodes
    back one by one, so then they say nothing.

    Raises:
        HostlistError: the node list cannot be read.
    """
    if status is None or status.state is not JobState.RUNNING or status.nodes is None:
        return None
    return expand_hostlist(status.nodes)


def parse_accounting(output: CommandOutput, job_ids: Sequence[str]) -> dict[str, JobStatus] | None:
    """Those of the jobs that the accounting data base knows, from `sacct`; None if there is none."""
    if output.returncode:
        return None
    rows = [_accounting_status(row) for row in _rows(output.stdout, ACCOUNTING_FIELDS)]
    return _by_id(rows, job_ids)


def parse_cancellation(output: CommandOutput, job_id: str) -> None:
    """Nothing, if `scancel` did its work or the job is over.

    Raises:
        SchedulerError: it was refused, or the controller does not answer.
    """
    words = slurm_words(output.stderr)
    if output.returncode and "already completing or completed" not in words and "Invalid job id" not in words:
        raise SchedulerError(f"scancel could not end job {job_id}: {words}", tip=find_tip(words))


def parse_requeue(output: CommandOutput, job_id: str) -> None:
    """Nothing, if `scontrol requeue` did its work.

    Raises:
        SchedulerError: it was refused, or the controller does not answer.
    """
    if output.returncode:
        words = slurm_words(output.stderr)
        raise SchedulerError(f"scontrol could not requeue job {job_id}: {words}", tip=find_tip(words))


def parse_ping(output: CommandOutput) -> bool:
    """Whether a controller answers, by `scontrol ping`: one of several is enough."""
    return any(line.rstrip().endswith(" is UP") for line in output.stdout.splitlines())


def parse_state(native: str) -> JobState:
    """Our state for Slurm's word; a word that is not known is taken for a job that still runs."""
    word = native.split(" ")[0].rstrip("+")  # sacct: "CANCELLED by 1000"
    if word in _STATES:
        return _STATES[word]
    try:
        return JobState(word)
    except ValueError:
        return JobState.RUNNING  # SUSPENDED, STOPPED, RESIZING, SIGNALING, and what later versions add


def _rows(stdout: str, fields: Sequence[str]) -> Iterable[Mapping[str, str]]:
    """The lines as mappings; the last field may hold separators."""
    for line in stdout.splitlines():
        values = line.removesuffix(SEPARATOR).split(SEPARATOR, len(fields) - 1)
        if len(values) == len(fields):
            yield dict(zip(fields, map(str.strip, values), strict=True))


def _queue_status(row: Mapping[str, str]) -> tuple[tuple[str, str], JobStatus]:
    status = JobStatus(
        job_id=row["JobArrayID"],
        state=parse_state(row["State"]),
        native_state=row["State"],
        reason=_or_none(row["Reason"]),
        nodes=_or_none(row["NodeList"]),
        restarts=int(row["RestartCnt"] or 0),
        exit_code=parse_exit_code(row["exit_code"]),
    )
    return (row["JobID"], row["JobArrayID"]), status


def _accounting_status(row: Mapping[str, str]) -> tuple[tuple[str, str], JobStatus]:
    status = JobStatus(
        job_id=row["JobID"],
        state=parse_state(row["State"]),
        native_state=row["State"],
        reason=_or_none(row["Reason"]),
        nodes=_or_none(row["NodeList"]),
        exit_code=row["ExitCode"],
    )
    return (row["JobIDRaw"], row["JobID"]), status


def _by_id(rows: Sequence[tuple[tuple[str, str], JobStatus]], job_ids: Sequence[str]) -> dict[str, JobStatus]:
    """The status of each id: of a job, of a task by its own or its array's number, or of a whole array.

    Tasks that were cancelled before they started have a single row together (22.05): in squeue it is
    named as the array, in sacct `1234_[5-7]`.
    """
    named, tasks, rests = (defaultdict[str, list[JobStatus]](list) for _ in range(3))
    for names, status in rows:
        for name in set(names):
            named[name].append(status)
        if split := split_task_id(names[1]):
            tasks[split[0]].append(status)
        else:
            rests[names[1].partition("_[")[0]].append(status)
    found: dict[str, JobStatus] = {}
    for job_id in job_ids:
        split = split_task_id(job_id)
        candidates = tasks.get(job_id) or named.get(job_id) or (rests.get(split[0]) if split else None)
        chosen = min(candidates or (), key=lambda status: _URGENCY.index(status.state), default=None)
        if chosen:
            found[job_id] = replace(chosen, job_id=job_id)
    return found


def parse_exit_code(text: str) -> str:
    """Return `code:signal`, from squeue's `exit_code` field.

    Slurm 23.02 and later print `3:0`; until 22.05 it is the bare wait status, 768 for that.

    Raises:
        ValueError: it is neither.
    """
    code, colon, number = text.partition(":")
    if colon:
        return f"{int(code)}:{int(number)}"
    wait_status = int(text or 0)
    return f"{wait_status >> 8}:{wait_status & 0x7F}"


def _or_none(text: str) -> str | None:
    return None if text in ("", "None", "(null)", "None assigned") else text
