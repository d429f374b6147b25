"""Whether a job is started again after its allocation has ended; pure."""

from __future__ import annotations

from dataclasses import dataclass

from hpc_elastic.plan.launch_plan import RequeuePlan
from hpc_elastic.rundir.allocation_ends import ASKED_AGAIN

# A reason for which an allocation ends, and the word of `requeue.on` that it belongs to; None: it needs none.
CAUSES = {"time_limit": "time_limit", "preempted": "preempted", "node_lost": "node_loss", ASKED_AGAIN: None}
MOST_RESERVE_S = 10.0
LEAST_RESERVE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTimes:
    """When the workers are told and stopped, in seconds before the scheduler ends the job.

    `notice_s` before it they get the notice. `stop_s` before it they are stopped: they have `grace`, and what is left
    is for the last records.
    """

    notice_s: float
    stop_s: float


def end_times(lead_s: float, grace_s: float) -> EndTimes:
    """Return the times for a job's `signals.lead` and `signals.grace`; the records get at most what lies between."""
    reserve = max(LEAST_RESERVE_S, min(MOST_RESERVE_S, lead_s - grace_s))
    return EndTimes(notice_s=lead_s, stop_s=grace_s + reserve)


def find_refusal(requeue: RequeuePlan, reason: str, *, used: int) -> str:
    """Return why the job is not to be started again; empty if it is to be.

    What a person asks for is bounded by neither `requeue.on` nor the number of `requeue.max`, which are there for what
    happens by itself; but with 0 the job was submitted so that Slurm refuses.

    Args:
        requeue: what the plan says.
        reason: for which the allocation ends, as results have it.
        used: how often it was started again so far.
    """
    if reason not in CAUSES:
        return f"no job is started again after {reason}"
    if not requeue.max:
        return "requeue.max is 0, so the job is not started again"
    cause = CAUSES[reason]
    if cause is None:
        return ""
    if cause not in requeue.on:
        return f"requeue.on does not have {cause}, so the job is not started again"
    if used >= requeue.max:
        times = "the one requeue" if requeue.max == 1 else f"all {requeue.max} requeues"
        return f"{times} of requeue.max {'is' if requeue.max == 1 else 'are'} used up"
    return ""
