"""Has a run go on in another job where Slurm ends its job because the batch script's node was set DOWN; blocks.

Theory of operation. Slurm 22.05 and 24.11 kill the script then, and end the job as failed with it, also where it runs
with `--no-kill` (26.05 lets the others go on). The agents on the other nodes get a TERM while their head is lost,
or just when one of them has become head and finds out why the TERM came, and have KillWait (30 s by default) to the
KILL. The first of them that finds the script's node taken from the job submits another job that waits for the end of
this one, as where a site forbids requeues. A requeue would do harm: the slurmd of that node lives and takes the job for
one that it runs already, so that Slurm drains the node, and holds the job (`Duplicate jobid`). Where the run may not
start again, or Slurm refuses the other job to all of them, an agent writes its result.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Sequence

from hpc_elastic.agent.records.another_start import ask_for_another_start
from hpc_elastic.agent.records.journal import Journal
from hpc_elastic.errors import ExitCode, HpcElasticError
from hpc_elastic.membership.actions import Leave
from hpc_elastic.rundir.records import RunResultRecord
from hpc_elastic.rundir.states import RunState
from hpc_elastic.scheduler.allocation import Allocation

NODE_LOST = "node_lost"
MOST_ASKERS = 3  # so many agents ask, each after the ones before it: one alone may go with its node
STANDS_BY_S = 4.0
LOOKS_AFTER_S = (0.0, 1.0, 2.0)  # at a job of which a busy controller says nothing
LOOKS_EVERY_S = 0.5  # whether an agent before this one has done it


def follow_lost_script(
    leave: Leave,
    allocation: Allocation,
    journal: Journal,
    *,
    stands_by_s: float = STANDS_BY_S,
    pauses_s: Sequence[float] = LOOKS_AFTER_S,
) -> None:
    """Submit another job for the run if Slurm ends this one with its batch script's node, and nobody else has done so.

    Args:
        leave: how this agent leaves, which has no workers any more.
        allocation: this node's place; the script runs on the first node.
        journal: the run directory, and the scheduler.
        stands_by_s: how long each agent before this one has for it.
        pauses_s: the pauses before the looks at the job; after the last one the job has ended for another reason.
    """
    turn = allocation.node_id - 1
    is_stopped = leave.exit_code in (ExitCode.STOPPED, ExitCode.REQUEUE)
    if allocation.is_local or not is_stopped or not 0 <= turn < MOST_ASKERS:
        return
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it comes again, and a KILL ends this process in any case
    ends = time.monotonic() + sum(pauses_s)  # each look may take seconds, where the controller does not answer
    with contextlib.suppress(HpcElasticError):
        if not _has_claim(journal) or not _may_follow(journal):
            return
        if journal.next_start.reason_of() is not None and not _is_for_host(allocation, journal):
            return
        for pause_s in pauses_s:
            time.sleep(pause_s)
            is_down = _is_host_down(allocation, journal)
            if is_down and _comes_to_turn(journal, turn * stands_by_s):
                cause = _follow(allocation, journal)
                if cause and _comes_to_turn(journal, (MOST_ASKERS - turn) * stands_by_s):
                    _write_result(allocation, journal, cause)
            if is_down is not None or time.monotonic() > ends:
                return


def _has_claim(journal: Journal) -> bool:
    """Return whether this start has claimed an allocation, which an agent without a head has not heard of."""
    first = journal.read_records(needs_world=False).first
    if first is not None and not journal.allocation:
        journal.allocation = first.allocation
    return first is not None


def _is_for_host(allocation: Allocation, journal: Journal) -> bool:
    """Return whether a head has noted that the allocation ends for the node of the script; for others that asks."""
    nodes = journal.next_start.nodes_of()
    return journal.next_start.reason_of() == NODE_LOST and (not nodes or allocation.nodes[0] in nodes)


def _is_host_down(allocation: Allocation, journal: Journal) -> bool | None:
    """Return whether Slurm ends the job with a node that it has taken from it; None if it does not say."""
    outlook = journal.next_start.outlook()
    if outlook is None:
        return None
    return outlook.has_lost_node and outlook.restarts <= allocation.restart_count


def _comes_to_turn(journal: Journal, seconds: float) -> bool:
    """Return whether the run is to go on, and no agent before this one has seen to that within its time."""
    ends = time.monotonic() + seconds
    while _may_follow(journal):
        if (left := ends - time.monotonic()) <= 0:
            return True
        time.sleep(min(LOOKS_EVERY_S, left))
    return False


def _may_follow(journal: Journal) -> bool:
    """Return whether the run is to go on, as far as the records say, and no other job waits for the end of this one."""
    journal.requests()
    return not (
        journal.is_end_wanted or journal.next_start.has_follower() or journal.read_records(needs_world=False).result
    )


def _follow(allocation: Allocation, journal: Journal) -> str:
    """Have another job submitted; return the cause with which the run ends, for this agent is refused that job."""
    host = allocation.nodes[0]
    what = f"{host}, the node of the batch script, was set DOWN, and Slurm ends job {allocation.job_id} with it"
    if journal.next_start.reason_of() is None:
        if refusal := journal.next_start.find_refusal(NODE_LOST):
            journal.say(f"{what}; {refusal}", "error")
            _write_result(allocation, journal, f"{what}; {refusal}")
            return ""
        journal.next_start.note(NODE_LOST, [host])
    avoid = [*(node for node in journal.next_start.nodes_of() if node != host), host]  # what matters most is the last
    journal.say(f"{what}: another job is to take its place")
    refusal = ask_for_another_start(
        journal, say=lambda text: journal.say(text, "warning"), avoid=avoid, is_by_another_job=True
    )
    if refusal:
        journal.say(f"no job takes the place of job {allocation.job_id}: {refusal}", "error")
        return f"{what}; no other job takes its place: {refusal}"
    return ""


def _write_result(allocation: Allocation, journal: Journal, cause: str) -> None:
    """Write the result of a run that ends with this job, for the script is dead that would write it."""
    records = journal.read_records(needs_world=False)
    if (first := records.first) is None:
        return
    latest = records.claim
    result = RunResultRecord(
        run=first.run,
        state=RunState.FAILED,
        exit_code=int(ExitCode.NODE_LOST),
        reason=NODE_LOST,
        cause=cause,
        attempts=latest.attempt if latest is not None else 0,
        restarts=latest.spend.restarts if latest is not None else 0,
        failures={},
        return_values={},
        nodes=latest.members if latest is not None else first.nodes,
        started=journal.first_start(),
        ended="",
        written_by=allocation.node,
    )
    journal.write_result(result)
