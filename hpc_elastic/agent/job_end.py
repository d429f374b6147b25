"""Ends the Slurm job as the last act of an agent, where the batch script that would end it is lost; blocks.

Theory of operation. One agent ends the job at once. Should it die before, a few others stand by, each for
`STANDS_BY_S` longer than the one before it: Slurm's TERM, with which a job ends, ends them. So an agent that is still
here after that time knows, without a question to Slurm, that nobody has ended the job. Slurm's TERM also ends them when
it starts the job again; an agent that Slurm cannot reach gets none, so each asks first whether the job was started
again: what runs under its number then is not this agent's to end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from hpc_elastic.agent.net.reach import find_answering_port
from hpc_elastic.agent.node.answering import OTHER_PORTS
from hpc_elastic.agent.records.another_start import ask_for_another_start
from hpc_elastic.agent.records.journal import Journal
from hpc_elastic.errors import ExitCode, HpcElasticError, SchedulerError
from hpc_elastic.membership.actions import Leave
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.scheduler.allocation import Allocation
from hpc_elastic.scheduler.questions import end_job
from hpc_elastic.scheduler.slurm.step import launch_address

# About an hour: a controller that restarts, or whose machine is exchanged, is back by then.
END_AGAIN_AFTER_S = (5.0, 10.0, 20.0, 40.0, *[60.0] * 60)
# Looks at a batch script that may be there again: NFS may hide the result from it for 30 s, and its `after` block may
# take long, which stores results, say. A script that has not ended after an hour is taken for one that never does.
SCRIPT_LOOKS_AFTER_S = (60.0, *[30.0] * 118)
# How long an agent has to end the job before the next one does: a look at the script's node takes 2 s, a question to a
# busy controller seconds, and so does the TERM that follows.
STANDS_BY_S = 15.0


class _Questions(Protocol):
    """What is asked about a job whose batch script is lost, or may be there again."""

    def is_over(self, job_id: str) -> bool | None: ...

    def is_requeued(self, job_id: str, restart_count: int) -> bool | None: ...

    def dead_nodes(self, job_id: str, nodes: Collection[str]) -> frozenset[str]: ...


def see_to_job_end(
    leave: Leave,
    plan: LaunchPlan,
    allocation: Allocation,
    journal: Journal,
    questions: _Questions,
    *,
    stands_by_s: float = STANDS_BY_S,
) -> None:
    """End the Slurm job, or have it started again, if that is left to this agent, which has no workers any more.

    Args:
        leave: how this agent leaves.
        plan: the launch plan.
        allocation: this node's place.
        journal: the run directory.
        questions: asks Slurm.
        stands_by_s: how long each agent before this one has to end the job.
    """
    if allocation.is_local or not (leave.ends_job or leave.stands_by or leave.looks_for_script):
        return
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # it comes when the job ends without this agent
    if not leave.ends_job:
        if leave.stands_by:
            _stand_by(allocation.job_id, journal.say, leave.stands_by * stands_by_s)
        elif not _has_lost_script(allocation, questions, within_s=2 * stands_by_s):
            return
    is_stopped = leave.exit_code == ExitCode.REQUEUE  # only this start of the job is over
    if is_stopped and not _start_again(journal, plan, allocation.job_id):
        return
    if not _leaves_to_script(allocation, questions, journal.say):
        _end_job(allocation, questions, journal.say, may_be_requeued=is_stopped)


def _stand_by(job_id: str, say: Callable[..., None], seconds: float) -> None:
    """Wait for the end of the job, with which this process ends; return if that does not come."""
    what = f"another agent sees to the end of job {job_id}, whose batch script is lost"
    say(f"{what}; this one does if the job is still there in {seconds:g} s")
    time.sleep(seconds)
    say(f"job {job_id} is still there after {seconds:g} s", "warning")


def _start_again(journal: Journal, plan: LaunchPlan, job_id: str) -> bool:
    """Have the job started again, if its head has decided that: the batch script that would was lost with its node.

    Returns:
        Whether this start of it is left to be ended: Slurm does so where it requeues the job, and not where another job
        waits for the end of this one, nor where it refuses, which leaves the nodes without work.
    """
    with contextlib.suppress(HpcElasticError):
        if journal.next_start.reason_of() is None or journal.next_start.is_requeued():
            return False
        journal.say(f"the node of the batch script was lost: having job {job_id} started again")
        if refusal := ask_for_another_start(journal, say=lambda text: journal.say(text, "warning")):
            journal.say(f"job {job_id} is not started again: {refusal}", "error")
        return bool(refusal) or plan.requeue.by != "requeue" or journal.next_start.is_followed
    return False


def _has_lost_script(allocation: Allocation, questions: _Questions, *, within_s: float) -> bool:
    """Return whether the batch script is gone with its node, whose agent was gone before: nobody has looked since.

    An agent that is killed leaves its script. One that ends as its machine is shut down does not, and its connection is
    closed in the same way. By now such a machine is off, or Slurm has given it up, or it has started again before that:
    then Slurm ends the job itself.

    Args:
        allocation: the allocation; the script runs on the first of its nodes.
        questions: asks Slurm. Its silence decides nothing.
        within_s: how long a script that lives has to end the job, and this agent with it, if its node does not answer:
            a firewall may let nothing pass.
    """
    address, host = launch_address(os.environ), allocation.nodes[0]
    if host in questions.dead_nodes(allocation.job_id, [host]):
        return True
    if not address or _answers(address):
        return False
    time.sleep(within_s)
    return not _answers(address)


def _leaves_to_script(
    allocation: Allocation,
    questions: _Questions,
    say: Callable[..., None],
    *,
    pauses_s: Sequence[float] = SCRIPT_LOOKS_AFTER_S,
) -> bool:
    """Return whether the batch script ends the job, which was lost with its node; blocks as long as it may.

    The script may only have been suspended and run again, as after `scontrol resume`. Then it ends the job itself, with
    the run's own exit code and not as cancelled, after what a site's template has put behind the run. A node that has
    started again has no script: Slurm ends the job when that node's slurmd registers, or takes a node from the job
    whose slurmd does not come.

    Args:
        allocation: the allocation; the script runs on the first of its nodes.
        questions: asks Slurm. Its silence decides nothing.
        say: takes a line for the agent's log.
        pauses_s: the pauses before each look at the node and the job; after the last one this agent ends the job.
    """
    address = launch_address(os.environ)
    if not _answers(address):
        return False
    say(f"the node of the batch script answers again: its script may end job {allocation.job_id}")
    host = allocation.nodes[0]
    for pause_s in pauses_s:
        time.sleep(pause_s)
        if questions.is_over(allocation.job_id):
            return True
        if not _answers(address) or host in questions.dead_nodes(allocation.job_id, [host]):
            return False
    return False


def _end_job(
    allocation: Allocation,
    questions: _Questions,
    say: Callable[..., None],
    *,
    may_be_requeued: bool = False,
    pauses_s: Sequence[float] = END_AGAIN_AFTER_S,
) -> None:
    """End the job, as the last act of this agent: the batch script that would end it was lost with its node.

    All other agents have left, or stand by: where the controller does not answer, this one asks again, because a job
    that nobody ends holds all its nodes until its time limit. A job that Slurm has put back into the queue is another
    start's, and stays.

    Args:
        allocation: the job, and which start of it this is.
        questions: asks Slurm, whose silence decides nothing else.
        say: takes a line for the agent's log, and its level.
        may_be_requeued: Slurm was asked to start the job again, and its answer may have been lost: it has to say that
            it does not.
        pauses_s: the pauses after each try that fails; after the last one the agent gives up.
    """
    job_id = allocation.job_id
    say(f"the node of the batch script was lost: ending job {job_id}")
    has_complained = False
    for pause_s in (*pauses_s, None):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it comes here and to the command, with nothing left to stop
        try:
            is_requeued = questions.is_requeued(job_id, allocation.restart_count)
            if is_requeued:
                say(f"job {job_id} was started again, and stays")
                return
            if is_requeued is None and may_be_requeued:
                raise SchedulerError(f"Slurm does not say whether job {job_id} was started again")
            end_job(job_id)
        except SchedulerError as error:
            if pause_s is None:
                say(f"{error.message}; end it with `scancel {job_id}`", "warning")
                return
            if not has_complained:
                say(f"{error.message}; trying again for {sum(pauses_s) / 60:.0f} min", "warning")
            has_complained = True
        else:
            return
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(pause_s)


def _answers(address: str) -> bool:
    """Return whether a machine accepts or refuses connections; one without power does neither."""
    return bool(address) and asyncio.run(find_answering_port(address, OTHER_PORTS)) is not None
