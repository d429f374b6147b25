"""Asks for the next start of a job that Slurm is ending, before its KILL ends the batch script that would; blocks.

Theory of operation. Slurm ends a job by a TERM, and KillWait later by a KILL (preemption, time limit). The head finds
out why, and records it when no worker is left; the batch script asks for the next start when all agents have left.
Workers that use nearly all of KillWait, a long write of training states or a busy machine leave too little time for
that: Slurm has killed the script, and nothing follows the run. So the head's agent asks at once, while it and the
others leave. A requeue of a job that is being ended sends no signal: the others keep their time (22.05, 24.11). The
script finds what was asked for, as the scheduler counts the start or a line names the job that follows, and does not
ask again.

An agent asks only if the scheduler itself says that it ends this job for a preemption or its time limit: a `scancel`
is neither. Within the grace of a preemption it leaves the time of that, and the script's output tells of it. As long as
the job runs, the script has the time, and a requeue would end what the agents still write. Nothing is asked for if a
person wants the end of the run, another head has ended it, or another job goes on with it.
"""

from __future__ import annotations

import contextlib

from hpc_elastic.agent.records.journal import Journal
from hpc_elastic.errors import ExitCode, HpcElasticError
from hpc_elastic.membership.actions import Leave
from hpc_elastic.scheduler.allocation import Allocation
from hpc_elastic.scheduler.protocol import JobState

NODE_LOST = "node_lost"  # which `lost_script` sees to


def ask_before_kill(leave: Leave, allocation: Allocation, journal: Journal) -> None:
    """Have the job started again if its head, on this node, has decided that and Slurm is about to kill the script.

    It asks once: where the scheduler refuses or does not answer, the script asks again, and writes the result.

    Args:
        leave: how this agent leaves.
        allocation: this node's place.
        journal: the run directory, and the scheduler.
    """
    if allocation.is_local or leave.exit_code != ExitCode.REQUEUE or not journal.is_head:
        return
    with contextlib.suppress(HpcElasticError):
        if journal.next_start.reason_of() in (None, NODE_LOST) or not _is_ended_by_scheduler(allocation, journal):
            return
        _, later_start = journal.requests()
        if later_start is not None or journal.is_end_wanted or journal.find_result() is not None:
            return
        if refusal := journal.next_start.start_again():
            journal.say(f"job {allocation.job_id} is not started again yet: {refusal}", "warning")
        else:
            journal.say(f"Slurm is ending job {allocation.job_id}: the next start is asked for")


def _is_ended_by_scheduler(allocation: Allocation, journal: Journal) -> bool:
    """Return whether the scheduler is ending the job for a reason of its own, and does not itself start it again."""
    outlook = journal.next_start.outlook()
    if outlook is None or outlook.state is JobState.RUNNING or outlook.restarts > allocation.restart_count:
        return False
    return (outlook.is_preempted or outlook.is_out_of_time) and not journal.next_start.is_cancelled()
