"""Decides the state of a run from the run directory's facts and the scheduler's job status; pure."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hpc_elastic.errors import ExitCode
from hpc_elastic.hostlist import HostlistError, expand_hostlist
from hpc_elastic.observe.facts import Facts
from hpc_elastic.rundir.full_disk import tells_of_no_space
from hpc_elastic.rundir.states import RunState

if TYPE_CHECKING:
    from hpc_elastic.scheduler.protocol import JobStatus

SETTLE_S = 60.0  # NFS may hide a new name for 30 s and more, and an agent's last write takes its time
_KILLED = (":9", ":15")  # the ends of a job's exit code if a signal has ended its script
_UNUSABLE = f"{int(ExitCode.RUN_DIRECTORY)}:0"  # with which agents leave that cannot write, nor say why on a full disk
_OF_AGENTS = {f"{int(code)}:0": code for code in (ExitCode.RUN_DIRECTORY, ExitCode.NODE_LOST)}  # and not of setup
_OF_SETUP = f"{int(ExitCode.SETUP)}:0"  # with which the script leaves that meets a bad setup line, or a bad Python
_NO_OUTPUT = ":53"  # the same, where slurmd could not open the script's output: it has not run
NAMED_BY_BASH_ENV = "which BASH_ENV names and bash runs before each script"
JOB_CANCELLED = "the job was cancelled"  # begins the cause where the scheduler itself says so
KILLED_BEFORE_NEXT_START = "and Slurm killed it before its next start was asked for"  # in the cause, after why it ended


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingResult:
    """The result to write for a run whose job ended without a result.

    `is_certain`: no agent can be about to write a result, so there is nothing to wait for.
    """

    state: RunState
    reason: str
    exit_code: ExitCode
    cause: str
    is_certain: bool


# Of a run all of whose ranks have exited 0, whatever has ended its job and its agents after that.
FINISHED = MissingResult(
    state=RunState.SUCCEEDED,
    reason="succeeded",
    exit_code=ExitCode.SUCCESS,
    cause="every rank exited 0",
    is_certain=False,
)


def decide_state(facts: Facts, job: JobStatus | None) -> RunState:
    """Decide the run's state: from its result if there is one, else from the scheduler, else from the claims.

    A job that ended without a result is still RUNNING here: `missing_result` says what it will be.
    """
    if facts.result is not None:
        return _final_state(facts.result.get("state"))
    if job is None or job.state.is_terminal:
        return RunState.RUNNING if facts.allocations else RunState.PENDING
    if job.state.value == "PENDING" or starts_again(facts, job):
        return RunState.REQUEUED if facts.allocations else RunState.PENDING
    return RunState.RUNNING


def starts_again(facts: Facts, job: JobStatus) -> bool:
    """Return whether Slurm still ends a start of the job that it will follow by another: minutes, if a node is lost."""
    before = facts.allocation.get("restart_count")
    is_ending = job.state.value == "COMPLETING" and facts.allocation.get("job_id") == job.job_id
    return is_ending and isinstance(before, int) and job.restarts > before


def missing_result(
    facts: Facts,
    job: JobStatus | None,
    script_word: str = "",
    *,
    complaint: str = "",
    launch_error: str = "",
    is_scancelled: bool = False,
    failed_nodes: Sequence[str] = (),
    has_begun: bool = True,
    refusal: str = "",
    starts: int = 0,
) -> MissingResult | None:
    """Decide the result of a run whose job is over and that has none; None if the run is not in that state.

    Args:
        facts: the facts of the run directory.
        job: the job's status; None if the scheduler was not asked or did not answer.
        script_word: the last line of the batch script's output.
        complaint: the error that ended the head's agent.
        launch_error: why the agents could not be started on all nodes, by the batch script's output.
        is_scancelled: whether the batch script's output tells of a `scancel`.
        failed_nodes: those that Slurm has taken from the job, by the batch script's output.
        has_begun: whether the batch script has written its first line.
        refusal: that nothing can be written to the run directory for want of space or of quota.
        starts: how often the batch script has begun, by its output; accounting does not count the restarts of a job.
    """
    if facts.result is not None or job is None or not job.state.is_terminal:
        return None
    never_started = facts.allocations == 0
    state = job.state.value
    if state == "CANCELLED" or (facts.is_stop_requested and state == "GONE"):
        if never_started and facts.submission.get("foreground") and not facts.is_stop_requested:
            return _ended_before_agents(job)
        return _cancelled(facts, never_started)
    if is_scancelled and (job.exit_code or "").endswith(_KILLED):
        return _cancelled(facts, never_started, is_by_script=True)
    if never_started and facts.is_stop_requested and facts.submission.get("foreground"):
        return _stopped_in_foreground()
    if never_started and facts.script_output is not None and state in ("FAILED", "COMPLETED", "GONE"):
        bash_env = facts.submission.get("bash_env")
        is_killed = not (job.exit_code or "").endswith(":0")  # before its first line, say by a prolog that failed
        replaced_by = str(bash_env) if bash_env and not has_begun and not is_killed else ""
        return _no_agent_started(job, script_word, launch_error, replaced_by)
    if launch_error and state == "FAILED":  # of a later start
        return _not_launched(launch_error, is_certain=False)
    if job.native_state == "DEADLINE" and (never_started or facts.has_ended):
        return _past_deadline(never_started)
    if complaint:
        return _gave_up(complaint)
    if state == "FAILED" and not never_started and (host := _failed_host(facts, job, failed_nodes)):
        return _lost_host(host)
    if state == "FAILED" and (job.exit_code or "").endswith(_NO_OUTPUT):
        return _not_begun(is_certain=never_started)
    return _ended(facts, replace(job, restarts=max(job.restarts, starts - 1)), script_word, refusal)


def _cancelled(facts: Facts, never_started: bool, *, is_by_script: bool = False) -> MissingResult:
    if facts.has_ended:
        before = "while the run waited to start again"
    else:
        has_begun = facts.script_output is not None  # its setup lines may take minutes
        before = "before any agent started" if has_begun else "before it started"
        before = before if never_started else "and no agent could write a result"
    if is_by_script:
        before = f"with its script (`scancel --batch`) {before}"
    return MissingResult(
        state=RunState.CANCELLED,
        reason="stop_requested" if facts.is_stop_requested else "terminated",
        exit_code=ExitCode.STOPPED,
        cause=f"{JOB_CANCELLED} {before}",
        is_certain=never_started or facts.has_ended,
    )


def _stopped_in_foreground() -> MissingResult:
    """Return the result of a run in an allocation that is not ours to cancel, whose script alone was stopped."""
    return MissingResult(
        state=RunState.CANCELLED,
        reason="stop_requested",
        exit_code=ExitCode.STOPPED,
        cause="the run was stopped before any agent started",
        is_certain=True,
    )


def _ended_before_agents(job: JobStatus) -> MissingResult:
    """Return the result of a run whose allocation, which is not ours, has ended before an agent was started in it."""
    ended = JOB_CANCELLED if job.native_state == "CANCELLED" else "the job ended"
    return MissingResult(
        state=RunState.CANCELLED,
        reason="terminated",
        exit_code=ExitCode.STOPPED,
        cause=f"{ended} before any agent started",
        is_certain=True,
    )


def _no_agent_started(job: JobStatus, script_word: str, launch_error: str, replaced_by: str) -> MissingResult:
    """Return the result of a run whose batch script ended before an agent had claimed the allocation.

    Args:
        job: the job's status.
        script_word: the last line of the script's output.
        launch_error: why srun could not start the agents.
        replaced_by: the file of BASH_ENV if the script has written nothing.
    """
    if launch_error:
        return _not_launched(launch_error, is_certain=True)
    failed = f"the script ended{_with_exit_code(job)} before any agent started"
    exit_code = _OF_AGENTS.get(job.exit_code or "")
    if not job.exit_code and tells_of_no_space(script_word):
        exit_code = ExitCode.RUN_DIRECTORY
    if exit_code is not None:
        return _gave_up(script_word.removeprefix("hpc_elastic: ") or failed, exit_code, is_certain=True)
    if replaced_by:
        failed = (
            f"the job ended{_with_exit_code(job)} and its script never began: {replaced_by}, {NAMED_BY_BASH_ENV}, may "
            "have exited or run another program (`exec`)"
        )
    return MissingResult(
        state=RunState.FAILED,
        reason="setup_failed",
        exit_code=ExitCode.SETUP,
        cause=f"{failed}: {script_word}" if script_word else failed,
        is_certain=True,
    )


def _not_launched(launch_error: str, *, is_certain: bool) -> MissingResult:
    return MissingResult(
        state=RunState.FAILED,
        reason="node_lost",
        exit_code=ExitCode.NODE_LOST,
        cause=f"{launch_error}, so that no agent went on",
        is_certain=is_certain,
    )


def _not_begun(*, is_certain: bool) -> MissingResult:
    """Return the result of a run whose batch script slurmd could not start, as it could not open its output."""
    return MissingResult(
        state=RunState.FAILED,
        reason="run_directory",
        exit_code=ExitCode.RUN_DIRECTORY,
        cause="Slurm could not begin the job's script (0:53): on the job's first node the run directory is not there, "
        "or cannot be written",
        is_certain=is_certain,
    )


def _gave_up(
    complaint: str, exit_code: ExitCode = ExitCode.RUN_DIRECTORY, *, is_certain: bool = False
) -> MissingResult:
    """Return the result of a run whose head failed and could not write a result: usually the disk is full or gone."""
    return MissingResult(
        state=RunState.FAILED,
        reason="agent_failed",
        exit_code=exit_code,
        cause=complaint,
        is_certain=is_certain,
    )


def _failed_host(facts: Facts, job: JobStatus, failed_nodes: Sequence[str]) -> str:
    """Return the node of the batch script if it was set DOWN, with which the job ended; empty if it was not.

    Slurm kills the script then: as long as the node's slurmd lives, the job has failed with it (22.05 and 24.11). The
    job has lost the node; after `scancel --batch --signal=KILL` (22.05: for the same reason) it has it still.
    """
    host = next(iter(facts.allocation.get("nodes") or ()), "")
    is_killed = (job.exit_code or "").endswith(_KILLED)
    is_taken = job.reason == "JobLaunchFailure" and not _has_node(job, str(host))
    return str(host) if is_killed and (host in failed_nodes or is_taken) else ""


def _has_node(job: JobStatus, node: str) -> bool:
    """Return whether a node is one of the job's, as far as the scheduler says."""
    with contextlib.suppress(HostlistError):
        return node in expand_hostlist(job.nodes or "")
    return False


def _lost_host(host: str) -> MissingResult:
    return MissingResult(
        state=RunState.FAILED,
        reason="node_lost",
        exit_code=ExitCode.NODE_LOST,
        cause=f"{host}, the node of the job's script, was set DOWN, and Slurm ended the job with it",
        is_certain=False,
    )


def _is_next_start_unasked(facts: Facts, job: JobStatus) -> bool:
    """Return whether this start of the job is the latest one of the run, whose head has decided on another."""
    return facts.has_ended and _is_latest_start(facts, job)


def _is_latest_start(facts: Facts, job: JobStatus) -> bool:
    """Return whether agents have claimed this start of the job."""
    before = facts.allocation.get("restart_count")
    return facts.allocation.get("job_id") == job.job_id and isinstance(before, int) and job.restarts <= before


def _past_deadline(never_started: bool) -> MissingResult:
    """Return the result of a run whose waiting job Slurm has removed, since it could not end before its deadline."""
    start = "its start" if never_started else "another start"
    return MissingResult(
        state=RunState.FAILED,
        reason="deadline",
        exit_code=ExitCode.NODE_LOST,
        cause=f"Slurm removed the waiting job: its deadline left no time for {start}",
        is_certain=True,
    )


def _ended(facts: Facts, job: JobStatus, script_word: str, refusal: str) -> MissingResult:
    never_started = facts.allocations == 0
    is_of_setup = job.state.value == "FAILED" and job.exit_code == _OF_SETUP
    if is_of_setup and not (never_started or _is_latest_start(facts, job)):
        return replace(_no_agent_started(job, script_word, "", ""), is_certain=False)
    unusable = ": its agents could not use the run directory" if job.exit_code == _UNUSABLE else ""
    ends = {
        "TIMEOUT": (RunState.FAILED, "time_limit", "the time limit ended the job"),
        "DEADLINE": (RunState.FAILED, "deadline", "the job's deadline ended it"),
        "PREEMPTED": (RunState.FAILED, "preempted", "the job was preempted and not requeued"),
        "NODE_FAIL": (RunState.FAILED, "node_lost", "a node failed and the scheduler ended the job"),
        "OUT_OF_MEMORY": (RunState.FAILED, "out_of_memory", "the job was killed because it went over its memory"),
        "FAILED": (RunState.FAILED, "no_result", f"the job failed{_with_exit_code(job)}{unusable}"),
    }
    unknown = (RunState.UNKNOWN, "no_result", _unknown_cause(job))
    state, reason, cause = ends.get(job.native_state) or ends.get(job.state.value) or unknown
    if refusal and reason == "no_result" and not (never_started or (job.exit_code or "").endswith(_KILLED)):
        return replace(_gave_up(f"{refusal}, and no agent wrote a result"), state=state)  # UNKNOWN: it may be cancelled
    last_words = f"; the script's last line: {script_word}" if script_word else ""
    is_unasked = reason in ("time_limit", "preempted") and _is_next_start_unasked(facts, job)
    what_is_missing = KILLED_BEFORE_NEXT_START if is_unasked else f"and no agent wrote a result{last_words}"
    return MissingResult(
        state=state,
        reason=reason,
        exit_code=ExitCode.RUN_DIRECTORY if job.exit_code == _UNUSABLE else ExitCode.NODE_LOST,
        cause=f"{cause}, {what_is_missing}",
        is_certain=never_started and job.state.value != "GONE",
    )


def _unknown_cause(job: JobStatus) -> str:
    if job.state.value == "GONE":
        return "the scheduler does not know the job any more"
    return f"the job ended as {job.native_state}{_with_exit_code(job)}"


def _with_exit_code(job: JobStatus) -> str:
    if not job.exit_code:
        return ""
    code, _, number = job.exit_code.partition(":")
    return f" by signal {number}" if number.strip("0") else f" with exit code {code}"


def _final_state(text: object) -> RunState:
    """Return the state of a result; UNKNOWN for a state that only a newer version knows."""
    try:
        return RunState(text)
    except ValueError:
        return RunState.UNKNOWN
