"""Stops a run: asks the agents to stop with grace, and has the scheduler end a job that does not stop."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpc_elastic.api.identity import host_name
from hpc_elastic.api.known_runs import find_original
from hpc_elastic.api.requests import ask_all_to_stop
from hpc_elastic.api.schedulers import in_background
from hpc_elastic.errors import ExitCode, HpcElasticError, RunDirectoryError, SchedulerError
from hpc_elastic.observe.snapshot import Snapshot
from hpc_elastic.observe.watch import RunWatch, watch
from hpc_elastic.rundir import store
from hpc_elastic.rundir.full_disk import is_for_want_of_space
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.scheduler.protocol import Scheduler
from hpc_elastic.scheduler.registry import make_scheduler

REACTION_S = 15.0  # beyond the grace: the head sees the request, stops all, writes the result
ENDING_S = 90.0  # for the scheduler: its own TERM, KillWait (30 s by default), KILL, epilogs
COMPLETES_S = 10.0  # afterwards a job that Slurm still ends waits for a node or a process that does not answer
SETTLE_S = 5.0  # a cancelled job's agents are dead; their last writes are visible after this time
_DEFAULT_GRACE_S = 60.0


class StillRunningError(HpcElasticError):
    """The job of a cancelled run does not end. Exit code 9."""

    exit_code = ExitCode.STALLED


def cancel_run(layout: RunLayout, snapshot: Snapshot, *, by: str, say: Callable[[str], None]) -> Snapshot:
    """Stop a run that is not over, and wait until it is, or until nothing but Slurm's own end of the job is left.

    Args:
        layout: the run's.
        snapshot: the run a moment ago.
        by: the program that asks for the stop, for the records.
        say: is called with each line about what is done.

    Returns:
        The run at its end; not over if Slurm has accepted the cancel and still ends the job.

    Raises:
        StillRunningError: the run goes on.
        RunDirectoryError: the run directory cannot be written (a full disk is no reason), is a copy of another one, or
            no job is known.
        SchedulerError: the scheduler refused, or does not answer.
    """
    check_no_copy(layout.root)
    scheduler = make_scheduler(snapshot.scheduler, run_dir=layout.root)
    run_watch = RunWatch(layout, in_background(scheduler), settle_s=SETTLE_S)
    is_asked = ask_if_possible([layout], by, say)
    run_watch.is_stop_requested = True
    if is_asked and _has_agents(snapshot) and not is_completing(snapshot):
        grace_s = grace_of(layout)
        say(f"asked {snapshot.name} to stop; its workers have {grace_s:g} s")
        snapshot = _look_until_over(run_watch, grace_s + REACTION_S)
    if snapshot.is_over:
        return snapshot
    try:
        return _cancel_job(layout, snapshot, scheduler, run_watch, say)
    except SchedulerError as error:
        if not is_asked:
            raise
        raise with_what_stays(error, _stays_asked(snapshot)) from error


def ask_if_possible(layouts: Sequence[RunLayout], by: str, say: Callable[[str], None]) -> bool:
    """Ask the agents to stop, and return whether that is written down: a full disk keeps nobody from a cancel.

    Raises:
        RunDirectoryError: a run directory cannot be written, and not because it is full.
    """
    try:
        ask_all_to_stop(layouts, by)
    except RunDirectoryError as error:
        if not is_for_want_of_space(error):
            raise
        say(f"{error}; only the scheduler is told")
        return False
    return True


def with_what_stays(error: SchedulerError, what: str) -> SchedulerError:
    """Return the refusal of a cancel with the state that it leaves: a request to stop is never taken back."""
    tip = error.tip or "call `hpc-elastic cancel` again when the scheduler answers, to end the job at once"
    return SchedulerError(f"{error.message}\n{what}", tip=tip)


def _stays_asked(snapshot: Snapshot) -> str:
    if _has_agents(snapshot):
        return "the request to stop stays in the run directory: the run ends as soon as its agents read it"
    return f"the request to stop stays in the run directory: if job {snapshot.job_id} starts, the run ends at once"


def check_no_copy(path: str) -> None:
    """Refuse a copy of a run, or of an array, because its job is the original's.

    Raises:
        RunDirectoryError: the directory is a copy.
    """
    if (original := find_original(path)) is not None:
        raise RunDirectoryError(
            f"{path} is a copy, and the run itself is in {original}",
            tip=f"to stop that one: `hpc-elastic cancel {shlex.quote(original)}`",
        )


def check_whose_job(job_id: str, submission: Mapping[str, Any], scheduler: str, folder: str) -> None:
    """Refuse to have a job ended that another cluster has by the id of the run's.

    Args:
        job_id: the job's, or that of an array or of one of its tasks.
        submission: the record of the run, or of the array.
        scheduler: the name of its scheduler.
        folder: the directory of the script.

    Raises:
        StillRunningError: it is another job.
    """
    from hpc_elastic.scheduler.slurm.identity import is_anothers_job

    if scheduler == "slurm" and is_anothers_job(job_id, submission, folder):
        raise StillRunningError(
            f"job {job_id} of the Slurm that is asked here is another one, and is left alone: the run's was submitted "
            f"on {submission.get('host')}",
            tip=f"call `hpc-elastic cancel` on {submission.get('host')}",
        )


def _has_agents(snapshot: Snapshot) -> bool:
    """Return whether there are agents to see the request: there are none while pending, or in the setup lines."""
    return snapshot.state.value == "RUNNING" and snapshot.allocations > 0


def _cancel_job(
    layout: RunLayout, snapshot: Snapshot, scheduler: Scheduler, run_watch: RunWatch, say: Callable[[str], None]
) -> Snapshot:
    submission = store.read_json(layout.submission) or {}
    if snapshot.job_id is None:
        raise RunDirectoryError(f"{layout.root} has no submission.json: no job is known", tip="the submission failed?")
    if submission.get("foreground"):
        raise StillRunningError(
            f"the run does not stop, and its job {snapshot.job_id} is not ours to cancel: it is an allocation that "
            "`hpc-elastic run` was called in",
            tip=f"press Ctrl-C there, or end the allocation with `scancel {snapshot.job_id}`",
        )
    if snapshot.scheduler == "local" and submission.get("host") not in (None, host_name()):
        raise StillRunningError(
            f"the run does not stop, and its processes are on {submission['host']}, not here",
            tip=f"call `hpc-elastic cancel` on {submission['host']}",
        )
    check_whose_job(snapshot.job_id, submission, snapshot.scheduler, str(submission.get("array") or layout.root))
    scheduler.cancel(snapshot.job_id)
    run_watch.is_cancelled = True
    say(f"cancelled job {snapshot.job_id}")
    snapshot = _look_until_over(run_watch, ENDING_S, COMPLETES_S)
    if not (snapshot.is_over or is_completing(snapshot)):
        raise StillRunningError(
            f"job {snapshot.job_id} was cancelled {ENDING_S:g} s ago and is still {snapshot.job_state or 'there'}",
            tip=f"`hpc-elastic status {snapshot.job_id}` says when it is over",
        )
    return snapshot


def is_completing(snapshot: Snapshot) -> bool:
    """Return whether Slurm ends the job, and only waits for its nodes to say that nothing of it is left."""
    return snapshot.job_state == "COMPLETING"


def _look_until_over(run_watch: RunWatch, seconds: float, completing_s: float = math.inf) -> Snapshot:
    """Return the last snapshot: that of the run's end, or that of the moment when the time was up.

    The time is `seconds`, or less where the job has been COMPLETING for `completing_s`.
    """
    deadline, patience = time.monotonic() + seconds, math.inf
    for snapshot in watch(run_watch):
        now = time.monotonic()
        patience = min(patience, now + completing_s) if is_completing(snapshot) else math.inf
        if snapshot.is_over or now >= min(deadline, patience):
            break
    return snapshot


def grace_of(layout: RunLayout) -> float:
    """Return the seconds between TERM and KILL when this run stops."""
    plan = store.read_json(layout.plan)
    try:
        return float(plan["signals"]["grace_s"])
    except (KeyError, TypeError, ValueError):
        return _DEFAULT_GRACE_S
