"""Parses what Slurm's commands return: exit status, output and error output become values."""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from hpc_elastic.errors import HpcElasticError, SchedulerError
from hpc_elastic.hostlist import HostlistError, expand_hostlist
from hpc_elastic.job_ids import split_task_id
from hpc_elastic.scheduler.protocol import JobOutlook, JobState, JobStatus
from hpc_elastic.scheduler.slurm.commands import ACCOUNTING_FIELDS, OUTLOOK_FIELDS, QUEUE_FIELDS, SEPARATOR
from hpc_elastic.scheduler.slurm.words import (
    find_tip,
    is_about_disabled,
    is_about_lost_reservation,
    is_for_now,
    printable,
    slurm_words,
)
from hpc_elastic.units import parse_duration

# job_state_string() of Slurm 20.11 to 26.05 and https://slurm.schedmd.com/job_state_codes.html, as far as the words are
# not those of JobState. Flags that no command prints in the state's place (UPDATE_DB) are not here.
_STATES = {
    **{state.value: state for state in JobState if state is not JobState.GONE},  # Slurm and JobState share these words
    "CONFIGURING": JobState.PENDING,  # its nodes are booting
    "POWER_UP_NODE": JobState.PENDING,  # its nodes are powering up
    "EXPEDITING": JobState.PENDING,  # since 25.11: requeued, and first in the queue
    "REQUEUED": JobState.PENDING,
    "REQUEUE_FED": JobState.PENDING,
    "REQUEUE_HOLD": JobState.PENDING,
    "SPECIAL_EXIT": JobState.PENDING,
    "RESV_DEL_HOLD": JobState.PENDING,
    "STAGE_OUT": JobState.COMPLETING,
    "BOOT_FAIL": JobState.NODE_FAIL,
    "DEADLINE": JobState.TIMEOUT,
    "OUT_OF_MEMORY": JobState.FAILED,
    "LAUNCH_FAILED": JobState.FAILED,
    "RECONFIG_FAIL": JobState.FAILED,
    "SUSPENDED": JobState.RUNNING,
    "STOPPED": JobState.RUNNING,
    "RESIZING": JobState.RUNNING,
    "SIGNALING": JobState.RUNNING,
    "REVOKED": JobState.RUNNING,  # running or pending, in another cluster of the federation
}
# The state of an array is that of its tasks which comes first here: furthest from a good end.
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
_NODE_FAILED = "NodeDown"  # of a job that may not lose a node, and that nobody has cancelled
_SCRIPT_KILLED = ("RaisedSignal:9(", "JobLaunchFailure")  # of one that has ended with its script (22.05: the second)
_HOST_FIELD = re.compile(r"(?<!\S)(ResizeTime|EndTime|NodeList|BatchHost)=(\S*)")
_KILLED_WITHIN = timedelta(seconds=30)  # of a script, after its node was set DOWN; in the same second in tests
_SUBMITTED = re.compile(r"(?:Submitted batch job )?([0-9]+)(?:;\S*| on cluster \S+)?")
_SUBMITTED_IN_WORDS = re.compile(r"Submitted batch job ([0-9]+)(?: on cluster \S+)?")
_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")  # colours of a script around sbatch
_JOB_ID = re.compile(r"[0-9]+(?:_[0-9]+)?")
# A row's job id: `7`, `7_3`, `7_[2-3%2]` for several tasks, `7+1` for a part of a heterogeneous job. A row's state: one
# of squeue's words, or from sacct also `CANCELLED by 1000` and `FAILED+`.
_ROW_ID = re.compile(r"[0-9]+(?:\+[0-9]+|_(?:[0-9]+|\[[-0-9,:%.]*\]))?")
_PART = re.compile(r"[_+]")
_NATIVE_STATE = re.compile(r"([A-Z][A-Z0-9_]*)\+?(?: by [^|]+)?")
_NUMBER = re.compile(r"[0-9]{1,9}")
_EXIT_CODE = re.compile(r"([0-9]{1,9}):([0-9]{1,9})")
_SHOWN_CHARACTERS = 200
_MOST_REMARKS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOutput:
    """The exit status and the output of a command."""

    returncode: int
    stdout: str
    stderr: str


def is_job_id(text: str) -> bool:
    """Return whether this can be Slurm's id of a job or of an array's task; other ids make a batched question fail."""
    return _JOB_ID.fullmatch(text) is not None


class UnclearSubmissionError(SchedulerError):
    """The job may be in the queue: sbatch ended well without a job id that can be read, or badly with one. Exit code 4.

    That is so where a site has put a script in the place of sbatch.
    """


def parse_submission(output: CommandOutput) -> str:
    """Return the job id that `sbatch --parsable` prints as `id` or `id;cluster`, on its last line.

    Some sites put a script in the place of sbatch, which prints lines of its own before or behind, in colours, or takes
    no `--parsable`.

    Raises:
        UnclearSubmissionError: there is no job id in the output, where a number among other lines may be something
            else; or there is one, and sbatch failed.
        SchedulerError: sbatch refused the job; the message has Slurm's own words.
    """
    printed = _ESCAPE.sub("", output.stdout).strip()
    lines = [line.strip() for line in printed.split("\n")]
    has_failed = output.returncode != 0
    if has_failed and not any(map(_SUBMITTED.fullmatch, lines)):
        words = slurm_words(output.stderr if output.stderr.strip() else printed)
        refusal = SchedulerError(f"sbatch refused the job: {words}", tip=find_tip(words))
        refusal.is_passing = is_for_now(words)
        refusal.is_reservation_over = is_about_lost_reservation(words)
        raise refusal
    told = {match[1] for match in map(_SUBMITTED_IN_WORDS.fullmatch, lines) if match}
    if not has_failed and (match := _SUBMITTED.fullmatch(lines[-1])):
        return match[1]
    if not has_failed and len(told) == 1:
        return told.pop()
    shown = printable(printed, _SHOWN_CHARACTERS)
    ended = f"with {output.returncode}, but printed '{shown}'" if has_failed else f"well, but its output '{shown}'"
    raise UnclearSubmissionError(
        f"sbatch ended {ended}{'' if has_failed else ' is no job id'}",
        tip="the job may be in the queue: look with `squeue --me`",
    )


def parse_remarks(output: CommandOutput) -> tuple[str, ...]:
    """Return what sbatch says to the user of a job that it takes: warnings, and the words of a site's job_submit."""
    lines = (_ESCAPE.sub("", line).strip() for line in output.stderr.splitlines())
    return tuple(printable(line, _SHOWN_CHARACTERS) for line in lines if line)[:_MOST_REMARKS]


def parse_submitted(output: CommandOutput, folders: Collection[str]) -> str | None:
    """Return the one job, or array, whose working directory is one of these, from `squeue`; None if it is not there.

    Raises:
        SchedulerError: the controller does not answer.
    """
    if output.returncode:
        words = slurm_words(output.stderr)
        raise SchedulerError(f"squeue does not answer: {words}", tip=find_tip(words))
    rows = (line.strip().removesuffix(SEPARATOR).partition(SEPARATOR) for line in output.stdout.splitlines())
    found = {job_id.strip().partition("_")[0] for job_id, _, directory in rows if directory.strip() in folders}
    return found.pop() if len(found) == 1 and all(map(is_job_id, found)) else None


def parse_queue(output: CommandOutput, job_ids: Sequence[str]) -> dict[str, JobStatus]:
    """Return the status of those jobs that the controller knows, from the output of `squeue`.

    Where SLURM_CLUSTERS names several clusters, squeue asks one after the other, and fails if one of them does.

    Raises:
        SchedulerError: the controller does not answer, or a row cannot be read.
    """
    if output.returncode and not _is_about_unknown_jobs(output.stderr):
        words = slurm_words(output.stderr)
        raise SchedulerError(f"squeue does not answer: {words}", tip=find_tip(words))
    return _by_id(_read_rows("squeue", output.stdout, QUEUE_FIELDS, _queue_status, job_ids), job_ids)


def _is_about_unknown_jobs(stderr: str) -> bool:
    """Return whether squeue's only error is that a job is unknown, which it prints when it is asked for a single id."""
    errors = [line for line in stderr.splitlines() if "error:" in line]
    return bool(errors) and all("Invalid job id specified" in line for line in errors)


def nodes_left(status: JobStatus | None) -> tuple[str, ...] | None:
    """Return the nodes that a running job still has; None if they are not known.

    Slurm (22.05) removes a node from a job that runs with --no-kill in the moment when it sets the node
    DOWN, and never gives it back, though the node may be IDLE a second later. The node's own state is no
    substitute: with FAIL, which an administrator sets, the job goes on there. A job that ends releases its
    nodes one by one, so its node list then means nothing.

    Raises:
        SchedulerError: the node list cannot be read.
    """
    if status is None or status.state is not JobState.RUNNING or status.nodes is None:
        return None
    try:
        return expand_hostlist(status.nodes)
    except HpcElasticError as error:
        raise SchedulerError(
            f"squeue's list of nodes cannot be read: {printable(error.message, _SHOWN_CHARACTERS)}"
        ) from error


def parse_outlook(output: CommandOutput, *, reserved_until: datetime | None = None) -> JobOutlook:
    """Return what `squeue` says about the end of one job.

    A preemption with a grace time moves the end of the job and leaves its time limit: TimeLeft does not show it (22.05
    to 26.05). The seconds left are then those from now to the end, where now is the start and the time used since, so
    that only times of the controller are compared. Nor does TimeLeft show the end of the job's reservation.

    Args:
        output: of `outlook_command`.
        reserved_until: when the job's reservation ends it, by the controller's clock; None if it does not, or nobody
            knows.

    Raises:
        SchedulerError: the controller does not answer, does not know the job, or the row cannot be read.
    """
    with _reading_row(output, OUTLOOK_FIELDS) as row:
        state = parse_state(row["State"])
        is_preempted = parse_moment(row["PreemptTime"]) is not None
        left = parse_seconds_left(row["TimeLeft"])
        if is_preempted and (ends := _seconds_until(parse_moment(row["EndTime"]), row)) is not None:
            left = ends if left is None else min(left, ends)
        reserved = _seconds_until(reserved_until, row)
        ends_with_reservation = reserved is not None and (left is None or reserved < left)
        return JobOutlook(
            state=state,
            restarts=_number(row["RestartCnt"]),
            seconds_left=reserved if ends_with_reservation else left,
            reservation=_or_none(row["Reservation"]) or "",
            ends_with_reservation=ends_with_reservation,
            is_preempted=is_preempted,
            is_out_of_time=row["Reason"] == "TimeLimit" or row["State"] == "TIMEOUT",
            has_lost_node=state is not JobState.RUNNING
            and (row["Reason"] == _NODE_FAILED or row["State"] == "NODE_FAIL"),
            is_script_killed=state is not JobState.RUNNING and row["Reason"].startswith(_SCRIPT_KILLED),
            starts=parse_moment(row["StartTime"]) if state is JobState.PENDING else None,
        )


def has_lost_host(output: CommandOutput) -> bool:
    """Return whether Slurm has taken the node of the batch script from a job that ends.

    Slurm resizes a job when it takes a node from it (22.05 to 26.05), and then the job's nodes are the others. A job
    that ends releases its nodes one by one, too, and may have lost another node long before: the script of a node that
    is taken is killed at once, so that the job ends with the resize.

    Args:
        output: of `host_command`.

    Raises:
        SchedulerError: the controller does not answer, does not know the job, or the line cannot be read.
    """
    lines = [line for line in output.stdout.split("\n") if line.strip()]
    if output.returncode or not lines:
        words = slurm_words(output.stderr) or "it does not know the job"
        raise SchedulerError(f"scontrol does not answer: {words}", tip=find_tip(words))
    fields = dict(reversed(_HOST_FIELD.findall(lines[-1])))  # the first of each: what people write comes after them
    try:
        left = expand_hostlist(fields["NodeList"].replace("(null)", ""))
        resized, ended = (parse_moment(fields.get(name, "")) for name in ("ResizeTime", "EndTime"))
        is_taken = fields["BatchHost"] not in left
    except (KeyError, ValueError, HpcElasticError) as error:
        shown = printable(lines[-1], _SHOWN_CHARACTERS)
        raise SchedulerError(f"scontrol printed a line that cannot be read: '{shown}'") from error
    return is_taken and resized is not None and ended is not None and ended - resized <= _KILLED_WITHIN


@contextlib.contextmanager
def _reading_row(output: CommandOutput, fields: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yield the one row that squeue prints of a job, by field; what cannot be read of it is a SchedulerError."""
    lines = [line for line in output.stdout.split("\n") if line.strip()]
    if output.returncode or not lines:
        words = slurm_words(output.stderr) or "it does not know the job"
        raise SchedulerError(f"squeue does not answer: {words}", tip=find_tip(words))
    values = lines[-1].removesuffix(SEPARATOR).split(SEPARATOR, len(fields) - 1)
    try:
        yield dict(zip(fields, map(str.strip, values), strict=True))
    except (ValueError, HpcElasticError) as error:
        raise SchedulerError(
            f"squeue printed a line that cannot be read: '{printable(lines[-1], _SHOWN_CHARACTERS)}', "
            f"where {'|'.join(fields)} was asked for"
        ) from error


def parse_seconds_left(text: str) -> float | None:
    """Return the seconds of squeue's TimeLeft (`%L`), infinite for no limit, None if Slurm does not know it.

    Raises:
        ValueError: the text is none of squeue's words.
    """
    if text == "UNLIMITED":
        return float("inf")
    if text in ("", "INVALID", "NOT_SET", "N/A"):
        return None
    return 0.0 if text.startswith("-") else parse_duration(text).total_seconds()


def parse_moment(text: str) -> datetime | None:
    """Return a time of the controller's clock; None if there is none.

    Raises:
        ValueError: the text is no time.
    """
    return None if text in ("", "N/A", "None", "Unknown", "NONE") else datetime.fromisoformat(text)


def _seconds_until(end: datetime | None, row: Mapping[str, str]) -> float | None:
    start = parse_moment(row["StartTime"])
    used = parse_seconds_left(row["TimeUsed"])
    return None if start is None or end is None or used is None else max(0.0, (end - start).total_seconds() - used)


def parse_reservation(output: CommandOutput, config: Mapping[str, str]) -> datetime | None:
    """Return when a reservation ends its jobs, by the controller's clock; None if it ends none, or it is not there.

    They may run on for `ResvOverRun` (slurm.conf), and those of a reservation with the flag FLEX for as long as their
    own time lasts.

    Args:
        output: of `reservation_command`.
        config: the settings of the cluster.
    """
    fields = dict(re.findall(r"(\w+)=(\S*)", "" if output.returncode else output.stdout))
    overrun = re.fullmatch(r"(\d{1,9})(?: min)?", config.get("ResvOverRun", "0 min"))
    if "FLEX" in fields.get("Flags", "").split(",") or overrun is None:
        return None
    try:
        ends = parse_moment(fields.get("EndTime", ""))
    except ValueError:
        return None
    return None if ends is None else ends + timedelta(minutes=int(overrun[1]))


def parse_accounting(output: CommandOutput, job_ids: Sequence[str]) -> dict[str, JobStatus] | None:
    """Return the status of those jobs that the accounting database knows, from `sacct`; None if there is no accounting.

    If sacct is told to show duplicates, a requeued job has a row for each start, the latest last.

    Raises:
        SchedulerError: there is accounting and it does not answer, or a row cannot be read.
    """
    if output.returncode:
        words = slurm_words(output.stderr)
        if "accounting storage is disabled" in words:
            return None
        raise SchedulerError(f"sacct does not answer: {words}", tip=find_tip(words))
    rows = _read_rows("sacct", output.stdout, ACCOUNTING_FIELDS, _accounting_status, job_ids)
    return _by_id(list(dict(rows).items()), job_ids)


def parse_cancellation(output: CommandOutput, job_id: str) -> None:
    """Check that `scancel` succeeded; a job that has already ended counts as success.

    Raises:
        SchedulerError: Slurm refused, or the controller does not answer.
    """
    words = slurm_words(output.stderr)
    if output.returncode and "already completing or completed" not in words and "Invalid job id" not in words:
        raise SchedulerError(f"scancel could not end job {job_id}: {words}", tip=find_tip(words))


def parse_excluded(output: CommandOutput) -> tuple[str, ...]:
    """Return the nodes that a job must not get, from `squeue`'s ExcNodes.

    Raises:
        SchedulerError: the controller does not answer, does not know the job, or the nodes cannot be read.
    """
    lines = [line for line in output.stdout.split("\n") if line.strip()]
    if output.returncode or not lines:
        words = slurm_words(output.stderr) or "it does not know the job"
        raise SchedulerError(f"squeue does not answer: {words}", tip=find_tip(words))
    try:
        return expand_hostlist(lines[-1].removesuffix(SEPARATOR).strip())
    except HostlistError as error:
        raise SchedulerError(f"squeue names excluded nodes that cannot be read: {error.message}") from None


def parse_test(output: CommandOutput) -> None:
    """Check that `sbatch --test-only` says that a script could run.

    Raises:
        SchedulerError: it could not, or the controller does not answer.
    """
    if output.returncode:
        words = slurm_words(output.stderr)
        raise SchedulerError(f"the job could not start without them: {words}", tip=find_tip(words))


def parse_exclude(output: CommandOutput, job_id: str) -> None:
    """Check that `scontrol update` has changed the nodes that a job must not get.

    Raises:
        SchedulerError: Slurm refused, or the controller does not answer.
    """
    if output.returncode:
        words = slurm_words(output.stderr)
        raise SchedulerError(f"scontrol could not exclude nodes from job {job_id}: {words}", tip=find_tip(words))


def parse_leave(output: CommandOutput, job_id: str) -> None:
    """Check that `scontrol update` has taken a job out of its reservation.

    Raises:
        SchedulerError: Slurm refused, or the controller does not answer.
    """
    if output.returncode:
        words = slurm_words(output.stderr)
        raise SchedulerError(f"scontrol could not take job {job_id} out of its reservation: {words}")


def parse_comment(output: CommandOutput, job_id: str) -> None:
    """Check that `scontrol update` has replaced a job's comment.

    Raises:
        SchedulerError: Slurm refused, or the controller does not answer.
    """
    if output.returncode:
        words = slurm_words(output.stderr)
        raise SchedulerError(f"scontrol could not set the comment of job {job_id}: {words}", tip=find_tip(words))


def parse_requeue(output: CommandOutput, job_id: str) -> None:
    """Check that `scontrol requeue` succeeded.

    Raises:
        SchedulerError: Slurm refused, or the controller does not answer.
    """
    if output.returncode:
        words = slurm_words(output.stderr)
        refusal = SchedulerError(f"scontrol could not requeue job {job_id}: {words}", tip=find_tip(words))
        refusal.is_disabled = is_about_disabled(words)
        raise refusal


def parse_ping(output: CommandOutput) -> bool:
    """Return whether a controller answers, from `scontrol ping`: one of several is enough."""
    return any(line.rstrip().endswith(" is UP") for line in output.stdout.splitlines())


def parse_state(native: str) -> JobState:
    """Return the JobState of Slurm's word; an unknown word counts as a job that still runs.

    Raises:
        ValueError: the text does not have the form of a job state.
    """
    match = _NATIVE_STATE.fullmatch(native)
    if match is None:
        raise ValueError(f"{native!r} is no job state")
    # A word that is not in the table was added by a later version.
    return _STATES.get(match[1], JobState.RUNNING)


_Named = tuple[tuple[str, str], JobStatus]


def _read_rows(
    program: str,
    stdout: str,
    fields: Sequence[str],
    read: Callable[[Mapping[str, str]], _Named],
    job_ids: Sequence[str],
) -> list[_Named]:
    """Return the rows as statuses, each with the two names of its job; the last field may hold separators.

    Raises:
        SchedulerError: a line is no row, or of a job that was not asked for; then the whole answer is unknown.
    """
    asked = {*job_ids, *map(_whole_of, job_ids)}
    found = []
    for line in filter(str.strip, stdout.split("\n")):
        values = line.removesuffix(SEPARATOR).split(SEPARATOR, len(fields) - 1)
        try:
            named, status = read(dict(zip(fields, map(str.strip, values), strict=True)))
            if asked.isdisjoint((*named, *map(_whole_of, named))):
                raise ValueError(f"nobody asked for {named[1]}")
            if not line.isprintable():
                raise ValueError("it has control characters")
        except ValueError as error:
            raise SchedulerError(
                f"{program} printed a line that cannot be read: '{printable(line, _SHOWN_CHARACTERS)}', "
                f"where {'|'.join(fields)} was asked for",
                tip="is it a wrapper that prints more, or a Slurm newer than docs/reference/slurm-versions.md knows?",
            ) from error
        found.append((named, status))
    return found


def _whole_of(name: str) -> str:
    """Return the job that a name is part of: `7` for a task `7_3`, tasks `7_[2-3%2]`, a heterogeneous part `7+1`."""
    return _PART.split(name, maxsplit=1)[0]


def _queue_status(row: Mapping[str, str]) -> _Named:
    status = JobStatus(
        job_id=_row_id(row["JobArrayID"]),
        state=parse_state(row["State"]),
        native_state=row["State"],
        reason=_or_none(row["Reason"]),
        nodes=_or_none(row["NodeList"]),
        restarts=_number(row["RestartCnt"]),
        exit_code=parse_exit_code(row["exit_code"]),
    )
    return (_row_id(row["JobID"]), row["JobArrayID"]), status


def _accounting_status(row: Mapping[str, str]) -> _Named:
    status = JobStatus(
        job_id=_row_id(row["JobID"]),
        state=parse_state(row["State"]),
        native_state=row["State"],
        reason=_or_none(row["Reason"]),
        nodes=_or_none(row["NodeList"]),
        exit_code=parse_exit_code(row["ExitCode"]),
    )
    return (_row_id(row["JobIDRaw"]), row["JobID"]), status


def _by_id(rows: Sequence[_Named], job_ids: Sequence[str]) -> dict[str, JobStatus]:
    """Return the status of each id: of a job, of a task by its own or its array's number, or of a whole array.

    Tasks that were cancelled before they started share a single row (22.05): in squeue it is
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
        at_home = [status for status in candidates or () if status.native_state != "REVOKED"]
        chosen = min(at_home or candidates or (), key=lambda status: _URGENCY.index(status.state), default=None)
        if chosen:
            found[job_id] = replace(chosen, job_id=job_id)
    return found


def parse_exit_code(text: str) -> str:
    """Return `code:signal`, from squeue's `exit_code` field or sacct's `ExitCode`.

    Slurm 23.02 and later print `3:0`; until 22.05 squeue printed the bare wait status, here 768.

    Raises:
        ValueError: the text is neither.
    """
    if match := _EXIT_CODE.fullmatch(text):
        return f"{int(match[1])}:{int(match[2])}"
    wait_status = _number(text)
    return f"{wait_status >> 8}:{wait_status & 0x7F}"


def _row_id(text: str) -> str:
    if _ROW_ID.fullmatch(text) is None:
        raise ValueError(f"{text!r} is no job id")
    return text


def _number(text: str) -> int:
    if _NUMBER.fullmatch(text) is None:
        raise ValueError(f"{text!r} is no number")
    return int(text)


def _or_none(text: str) -> str | None:
    return None if text in ("", "None", "(null)", "None assigned") else text
