"""Stops an array: waiting tasks never start, running ones are asked to stop; the scheduler ends those that do not."""

from __future__ import annotations

import os
from collections.abc import Callable

from hpc_elastic.api.cancel import (
    ENDING_S,
    REACTION_S,
    SETTLE_S,
    StillRunningError,
    ask_if_possible,
    check_no_copy,
    check_whose_job,
    grace_of,
    with_what_stays,
)
from hpc_elastic.api.identity import host_name
from hpc_elastic.api.look_at_array import ArrayWatch
from hpc_elastic.errors import SchedulerError
from hpc_elastic.job_ids import split_task_id
from hpc_elastic.observe.array import ArraySnapshot
from hpc_elastic.observe.snapshot import Snapshot
from hpc_elastic.rundir import store
from hpc_elastic.rundir.layout import ArrayLayout, RunLayout
from hpc_elastic.scheduler.registry import make_scheduler


def cancel_array(layout: ArrayLayout, *, by: str, say: Callable[[str], None]) -> ArraySnapshot:
    """Stop all tasks that are not over, and wait until they are.

    Args:
        layout: the array's.
        by: the program that asks for the stop, for the records.
        say: is called with each line about what is done.

    Returns:
        The array at its end.

    Raises:
        StillRunningError: a task goes on.
        RunDirectoryError: a run directory cannot be written, or the folder is a copy of another one.
        SchedulerError: the scheduler refused, or does not answer.
    """
    array_watch = ArrayWatch(layout, warn=say, settle_s=SETTLE_S)
    left = [run for run, _ in array_watch.facts.runs if not os.path.exists(run.result)]
    if left:
        check_no_copy(layout.root)
        _check_host(array_watch)
    # Before the first look, which gives a task that is gone the result of one that nobody stopped.
    # One that cannot be asked is enough: then the scheduler ends all.
    # A folder that was removed is not made again for the request.
    is_asked = ask_if_possible([run for run in left if os.path.isdir(run.root)], by, say)
    array_watch.note_stop()
    snapshot = array_watch.look()
    if snapshot.is_over:
        return snapshot
    try:
        snapshot = _cancel(array_watch, snapshot, is_asked, say)
    except SchedulerError as error:
        if not is_asked:
            raise
        stays = "the requests to stop stay in the run directories: the tasks end as soon as their agents read them"
        raise with_what_stays(error, f"{stays}, those that wait when they start") from error
    if not (snapshot.is_over or array_watch.lacks_only_gone(snapshot)):
        raise StillRunningError(
            f"job {snapshot.job_id} was cancelled {ENDING_S:g} s ago and still has {len(_not_over(snapshot))} tasks",
            tip=f"`hpc-elastic status {snapshot.job_id}` says when they are over",
        )
    return snapshot


def _cancel(
    array_watch: ArrayWatch, snapshot: ArraySnapshot, is_asked: bool, say: Callable[[str], None]
) -> ArraySnapshot:
    first = array_watch.facts.layout.task(0)
    scheduler = make_scheduler(snapshot.scheduler, run_dir=first.root)
    left = _not_over(snapshot)
    # `selected_by` is in the records of its tasks alone.
    record = store.read_json(first.submission) or array_watch.facts.record
    check_whose_job(str(snapshot.job_id), record, snapshot.scheduler, snapshot.run_dir)
    scheduler.cancel_pending(snapshot.job_id)
    if is_asked and (running := [task for task in left if task.allocations]):
        grace_s = grace_of(RunLayout(running[0].run_dir))
        say(f"asked {snapshot.name} to stop; the workers of {len(running)} tasks have {grace_s:g} s")
        snapshot = _look_until_over(array_watch, grace_s + REACTION_S)
    if not snapshot.is_over:
        for job_id in {snapshot.job_id, *map(_job_outside, _not_over(snapshot))} - {""}:
            scheduler.cancel(job_id)
        say(f"cancelled job {snapshot.job_id}")
        snapshot = _look_until_over(array_watch, ENDING_S)
    return snapshot


def _check_host(array_watch: ArrayWatch) -> None:
    record = array_watch.facts.record
    host = record.get("host")
    if record.get("scheduler") == "local" and host not in (None, host_name()):
        raise StillRunningError(
            f"the array's processes are on {host}, not here", tip=f"call `hpc-elastic cancel` on {host}"
        )


def _not_over(snapshot: ArraySnapshot) -> list[Snapshot]:
    return [task for task in snapshot.tasks if not task.is_over]


def _job_outside(task: Snapshot) -> str:
    """Return the id of the job of a task whose script was submitted by hand; empty if its job is the array's."""
    job_id = task.job_id or ""
    return "" if split_task_id(job_id) else job_id


def _look_until_over(array_watch: ArrayWatch, seconds: float) -> ArraySnapshot:
    for snapshot in array_watch.until_over(within_s=seconds):
        if array_watch.lacks_only_gone(snapshot):
            break
    return snapshot
