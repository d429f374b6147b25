"""Stops a run with notice: its workers are told first, have the time to save, and the run ends or starts again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from hpc_elastic.api.cancel import ENDING_S, REACTION_S, SETTLE_S, StillRunningError, check_no_copy, grace_of
from hpc_elastic.api.requests import make_request, send
from hpc_elastic.api.schedulers import in_background
from hpc_elastic.errors import RunDirectoryError, UsageError
from hpc_elastic.observe.facts import end_of_allocation
from hpc_elastic.observe.snapshot import Snapshot
from hpc_elastic.observe.watch import RunWatch, watch
from hpc_elastic.rundir import store
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.scheduler.registry import make_scheduler

_DEFAULT_LEAD_S = 120.0


def stop_run(
    layout: RunLayout,
    snapshot: Snapshot,
    *,
    is_requeue: bool = False,
    lead_s: float | None = None,
    by: str,
    say: Callable[[str], None],
) -> Snapshot:
    """Tell the workers of a run of the end, stop them when they have saved or their time is over, and wait for that.

    Nothing is asked of the scheduler: this goes where only the run directory can be written.

    Args:
        layout: the run's.
        snapshot: the run a moment ago; not over.
        is_requeue: end this allocation only, and have the job started again.
        lead_s: how long the workers have before they are stopped; None for the `signals.lead` of the job file.
        by: the program that asks for the stop, for the records.
        say: is called with each line about what is done.

    Returns:
        The run at its end; or, with `is_requeue`, when its job waits to start again or has done so.

    Raises:
        UsageError: the job cannot be started again.
        StillRunningError: the run goes on.
        RunDirectoryError: the run directory cannot be written or is a copy, or no worker of the run is at work.
    """
    check_no_copy(layout.root)
    if snapshot.state.value != "RUNNING" or not snapshot.allocations:
        raise RunDirectoryError(
            f"{snapshot.name} is {snapshot.state.value}, and none of its workers runs, so nobody has to be told",
            tip="`hpc-elastic cancel` takes it out of the queue",
        )
    plan = store.read_json(layout.plan) or {}
    if is_requeue:
        _check_requeue(layout, snapshot, plan)
    lead_s = _lead_of(plan) if lead_s is None else lead_s
    run_watch = RunWatch(
        layout, in_background(make_scheduler(snapshot.scheduler, run_dir=layout.root)), settle_s=SETTLE_S
    )
    allocation, grace_s = snapshot.allocations, grace_of(layout)
    if is_requeue and end_of_allocation(store.read_lines(layout.requests), allocation) is not None:
        raise RunDirectoryError(
            f"allocation {allocation} of {snapshot.name} has ended, and in the next one no agent is at work yet",
            tip=f"call it again when `hpc-elastic status {snapshot.job_id}` shows another attempt",
        )
    send(layout, make_request("stop", reason=by, seconds_left=lead_s, requeue=is_requeue, allocation=allocation))
    say(f"told the workers of {snapshot.name}; they have {lead_s:g} s to save, then TERM and {grace_s:g} s")
    within_s = lead_s + grace_s + REACTION_S + (ENDING_S if is_requeue else 0.0)
    return _await_end(run_watch, allocation, within_s, is_requeue=is_requeue)


def _await_end(run_watch: RunWatch, allocation: int, within_s: float, *, is_requeue: bool) -> Snapshot:
    deadline = time.monotonic() + within_s
    for snapshot in watch(run_watch):
        if snapshot.is_over:
            break
        if is_requeue and (snapshot.state.value == "REQUEUED" or snapshot.allocations > allocation):
            break
        if time.monotonic() >= deadline:
            raise StillRunningError(
                f"{snapshot.name} is still {snapshot.state.value} {within_s:g} s after its workers were told",
                tip="the head's log in agents/ may say why; `hpc-elastic cancel` asks the scheduler as well",
            )
    return snapshot


def _check_requeue(layout: RunLayout, snapshot: Snapshot, plan: Mapping[str, Any]) -> None:
    """Refuse to have a job started again that cannot be.

    Raises:
        UsageError: it cannot be.
    """
    tip = "without --requeue the run ends; submit its job file again then"
    if snapshot.scheduler == "local":
        raise UsageError("nothing starts a job of this machine again, so --requeue does not go with it", tip=tip)
    if (store.read_json(layout.submission) or {}).get("foreground"):
        raise UsageError(
            f"job {snapshot.job_id} is an allocation that `hpc-elastic run` was called in, which is not started again",
            tip=tip,
        )
    if not (plan.get("requeue") or {}).get("max"):
        raise UsageError("requeue.max of the job file is 0, so Slurm does not start the job again", tip=tip)


def _lead_of(plan: Mapping[str, Any]) -> float:
    try:
        return float(plan["signals"]["lead_s"])
    except (KeyError, TypeError, ValueError):
        return _DEFAULT_LEAD_S
