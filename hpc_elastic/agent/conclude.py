"""The program that writes the result of a run whose agents have all ended without writing one; the script's last call.

    PYTHON launch.py hpc_elastic.agent.conclude RUN_DIR STATUS STARTS

Theory of operation. The script calls it when every process that it launched has ended and there is no result: a SIGKILL
or the memory limit has taken the whole step, say. It writes what the records prove, and otherwise that the outcome
is unknown. It writes nothing if the run may go on, or if another program knows more:

- the run's latest allocation does not belong to this script: another job is at work, or this start has claimed no
  allocation, because it was refused or could not be set up (`STARTS`: how many claims there were before the launch);
- the scheduler does not count this start as still at work: it starts the job again, or has cancelled it, or its time
  is over, and `status` reports that from the scheduler's answer. The same holds if the scheduler does not answer,
  unless a person has asked for the end;
- the agents left in order to be started again: then it asks the scheduler for that, since it lives outside of the
  image where the agents are in one. If the scheduler refuses, the result says so. It does the same where Slurm preempts
  the job, or ends it at its time limit, and the agents were killed before they could say so, or left because the
  scheduler did not tell them: then it is asked for some minutes more.

If every rank has exited 0, success is the result whatever else happened.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from hpc_elastic.agent.records.another_start import PAUSES_S, ask_for_another_start
from hpc_elastic.agent.records.journal import Journal
from hpc_elastic.agent.records.retries import retry_here
from hpc_elastic.errors import ExitCode, HpcElasticError
from hpc_elastic.failures.classes import FailureClass
from hpc_elastic.hostlist import name_some
from hpc_elastic.job_ids import is_local
from hpc_elastic.membership.succession import Records
from hpc_elastic.plan.launch_plan import LaunchPlan, parse_plan
from hpc_elastic.printable import printable_line
from hpc_elastic.rundir.allocation_ends import NOT_STARTED_AGAIN, describe_reason
from hpc_elastic.rundir.complaint import last_lines, last_script_lines, read_complaint
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import (
    AllocationClaim,
    AttemptClaim,
    FailureRecord,
    NodeResult,
    RootCause,
    RunResultRecord,
    RunState,
)
from hpc_elastic.rundir.store import file_system_errors, never_make
from hpc_elastic.scheduler.allocation import Allocation
from hpc_elastic.scheduler.protocol import JobOutlook, JobState, NodeQuestions
from hpc_elastic.scheduler.questions import JobQuestions
from hpc_elastic.scheduler.registry import derive_start, find_cancelled_step
from hpc_elastic.scheduler.slurm.srun_errors import (
    describe_unstarted,
    find_launch_error,
    find_over_memory,
    find_unstarted,
)
from hpc_elastic.scheduler.slurm.step import find_job_nodes, find_job_number

WRITTEN_BY = "script"
NODE_LOST = "node_lost"  # a reason for another start, as in RESULT_REASONS
_KILLED = 128 + signal.SIGKILL
_ENDS_AT_TERM = (ExitCode.STOPPED, 128 + signal.SIGTERM, _KILLED)
TRIES_FOR_S = 3.0  # the job should not outlive its agents by much


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known about a run whose agents have ended.

    `status`: the highest exit status of the processes that the script launched. `complaint`: the error because of
    which an agent gave up; `launch_error`: that because of which srun did; `unstarted`: the nodes on which srun could
    not start an agent, with the reasons; `over_memory`: those on which the scheduler found the job over its
    memory, with how much it had. `nodes`: the latest records of the last world's nodes. `latest`: that world's claim.
    `is_out_of_time`: a local run has reached its time limit. `cancelled_step`: the step of the agents, if the scheduler
    wrote that it was cancelled.
    """

    records: Records
    status: int
    latest: AttemptClaim | None = None
    nodes: tuple[NodeResult, ...] = ()
    complaint: str = ""
    launch_error: str = ""
    unstarted: Mapping[str, str] = field(default_factory=dict)
    over_memory: Mapping[str, str] = field(default_factory=dict)
    is_stop_requested: bool = False
    is_out_of_time: bool = False
    cancelled_step: str = ""
    max_restarts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended whose agents can no longer report it."""

    state: RunState
    exit_code: ExitCode
    reason: str
    cause: str
    failures: dict[str, FailureRecord] = field(default_factory=dict)  # by global rank
    root_cause: RootCause | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """The cause in the result that the run has now, for people, empty if it has none; or the job starts again."""

    cause: str = ""
    is_started_again: bool = False


def main(arguments: Sequence[str]) -> int:
    """Write the result if there is none and no other program will write one; return an exit code.

    It is REQUEUE if the job starts again: that is then the script's, whatever the agents left with.
    """
    if len(arguments) != 3 or not all(text.isascii() and text.isdecimal() and len(text) < 10 for text in arguments[1:]):
        print("usage: launch.py hpc_elastic.agent.conclude RUN_DIR STATUS STARTS", file=sys.stderr)
        return int(ExitCode.USAGE)
    for number in (signal.SIGINT, signal.SIGTERM):  # this program takes some seconds at most
        signal.signal(number, signal.SIG_IGN)
    layout, status, starts = RunLayout(arguments[0]), int(arguments[1]), int(arguments[2])
    never_make(layout.root)
    try:
        conclusion = retry_here(lambda: conclude(layout, status, starts), within_s=TRIES_FOR_S)
    except HpcElasticError as error:
        print(
            f"hpc_elastic: no agent wrote a result, and the script cannot: {printable_line(error.message)}",
            file=sys.stderr,
        )
        return int(error.exit_code)
    except Exception as error:  # whatever the records contain, people get one line
        print(f"hpc_elastic: no agent wrote a result, and the script cannot: {error!r}"[:500], file=sys.stderr)
        return int(ExitCode.RUN_DIRECTORY)
    if conclusion.cause:
        print(f"hpc_elastic: {printable_line(conclusion.cause)}", file=sys.stderr)
    return int(ExitCode.REQUEUE if conclusion.is_started_again else ExitCode.SUCCESS)


def conclude(
    layout: RunLayout,
    status: int,
    starts: int = 0,
    questions: NodeQuestions | None = None,
    *,
    pauses_s: Sequence[float] = PAUSES_S,
) -> Conclusion:
    """Write the result if there is none and no other program will write one.

    Args:
        layout: the layout of the run directory.
        status: the highest exit status of the processes that the script launched.
        starts: how many allocations were claimed before the launch.
        questions: asks the scheduler.
        pauses_s: between two requests for another start, as of `ask_for_another_start`.

    Raises:
        HpcElasticError: the run directory cannot be read or written.
    """
    questions = questions or JobQuestions(complain=_say)
    with file_system_errors(layout.plan, "read"), open(layout.plan, encoding="utf-8") as file:
        plan = parse_plan(file.read())
    job_id, restart_count = derive_start(os.environ)
    journal = Journal(layout, plan, _place_of_script(plan, job_id, restart_count), questions=questions)
    records = journal.read_records(needs_world=True)
    if records.first is None or (records.result is None and records.first.allocation <= starts):
        journal.allocation = starts  # the latest one, of an earlier start
        unstarted = _find_unstarted(layout, job_id, find_job_nodes(os.environ))
        is_again = _start_again_unclaimed(plan, journal, records, status, pauses_s, unstarted=unstarted)
        cause = "" if is_again or records.first else _why_no_agent_began(layout, (job_id, restart_count))
        cause = cause or ("" if is_again else describe_unstarted(unstarted))
        return Conclusion(cause=cause, is_started_again=is_again)
    journal.allocation = journal.ended_here(records) or records.first.allocation
    evidence = _gather(layout, plan, journal, records, status)
    if not (records.result is not None or records.is_finished):
        if evidence.is_stop_requested:
            is_over = not questions.is_requeued(job_id, restart_count)
        else:
            is_at_work = questions.is_at_work(job_id, restart_count)
            if is_at_work is None and status == ExitCode.REQUEUE and journal.next_start.reason_of() is None:
                is_at_work = _ask_until_answered(journal, lambda: questions.is_at_work(job_id, restart_count), pauses_s)
                if is_at_work is None and _is_end_wanted(journal):
                    return _write(plan, journal, evidence, judge(replace(evidence, is_stop_requested=True)))
            if (reason := _find_requeue_reason(journal, is_at_work)) is not None:
                said = _start_again(journal, reason, pauses_s)
                if not said:
                    return Conclusion(is_started_again=True)
                if journal.next_start.is_cancelled() and questions.is_at_work(job_id, restart_count) is not True:
                    return Conclusion()
                if not _is_end_wanted(journal):
                    return _refused(plan, journal, evidence, reason, said)
                return _write(plan, journal, evidence, judge(replace(evidence, is_stop_requested=True)))
            is_over = status != ExitCode.REQUEUE and is_at_work is True
        if not is_over:
            return Conclusion()
        if _is_started_without(journal, evidence, pauses_s):
            return Conclusion(is_started_again=True)
    return _write(plan, journal, evidence, judge(evidence))


def _place_of_script(plan: LaunchPlan, job_id: str, restart_count: int) -> Allocation:
    """Return a place for the script, which is no agent of a node; nothing that is done here depends on the node."""
    return Allocation(
        job_id=job_id,
        restart_count=restart_count,
        array_task=None,
        node_id=0,
        nodes=(os.uname().nodename,),
        is_local=plan.scheduler == "local",
    )


def _ask_until_answered(journal: Journal, ask: Callable[[], bool | None], pauses_s: Sequence[float]) -> bool | None:
    """Return the scheduler's answer for agents that left because they got none; None if none comes, or need come.

    Where Slurm takes the nodes and starts nothing again (PreemptMode=CANCEL), this is the last who could ask for that.
    """
    _say("asking until the scheduler answers why it stops the job")
    for pause_s in pauses_s:
        journal.requests()
        if journal.is_end_wanted or not journal.next_start.may_answer_later():
            return None
        time.sleep(pause_s)
        if (answer := ask()) is not None:
            return answer
    return None


def _write(plan: LaunchPlan, journal: Journal, evidence: Evidence, outcome: Outcome) -> Conclusion:
    first = evidence.records.first
    assert first is not None
    journal.allocation = first.allocation  # of those that this start has claimed the latest: nobody goes on in it
    written = journal.write_result(_result(plan.run, outcome, evidence, journal.first_start()))
    return Conclusion(cause=written[1] if isinstance(written, tuple) else "")


def _find_requeue_reason(journal: Journal, is_at_work: bool | None) -> str | None:
    """Return why this allocation ends if the scheduler has stopped it; None if it has not, or if that is unknown.

    Nor has it where a person has cancelled the job after a head had found another reason: `status` says so then.
    """
    if is_at_work is not True and journal.next_start.is_cancelled():
        return None
    if (told := journal.next_start.reason_of()) is not None:
        return told
    outlook = None if is_at_work is None else journal.next_start.outlook()
    if outlook is None or outlook.restarts > journal.next_start.restart_count:
        return None
    return _reason_in(outlook)


def _reason_in(outlook: JobOutlook | None) -> str | None:
    """Return why the scheduler ends a job that may be started again; None if it does not, or does not say."""
    if outlook is None:
        return None
    if outlook.is_preempted:
        return "preempted"
    return "time_limit" if outlook.is_out_of_time else None


def _is_started_without(journal: Journal, evidence: Evidence, pauses_s: Sequence[float]) -> bool:
    """Have the job started again if nodes have cost the agents their step before they began to work.

    Later the script keeps srun from that, and a head decides. They are lost nodes all the same, for `requeue.on` too.
    """
    if not _is_launch_failed(evidence) or evidence.is_stop_requested or journal.next_start.find_refusal(NODE_LOST):
        return False
    _say(describe_unstarted(evidence.unstarted))
    return not _start_again(journal, NODE_LOST, pauses_s, avoid=tuple(evidence.unstarted))


def _is_launch_failed(evidence: Evidence) -> bool:
    """Return whether srun has ended the agents for nodes on which it could start none, before an attempt was opened."""
    return bool(evidence.unstarted) and evidence.records.first is not None and evidence.records.claim is None


def _start_again(journal: Journal, reason: str, pauses_s: Sequence[float], *, avoid: Sequence[str] = ()) -> str:
    """Have the job started again; return why it is not, empty if it is, or was already."""
    if journal.next_start.is_requeued():
        return ""
    if journal.next_start.reason_of() is None:
        if refusal := journal.next_start.find_refusal(reason):
            return refusal
        journal.next_start.note(reason, avoid)
    if said := ask_for_another_start(journal, say=_say, pauses_s=pauses_s):
        return f"{NOT_STARTED_AGAIN}: {said}"
    print(f"hpc_elastic: {journal.next_start.describe(reason)}; the job is started again", flush=True)
    return ""


def _say(text: str) -> None:
    print(f"hpc_elastic: {text}", file=sys.stderr, flush=True)


def _start_again_unclaimed(
    plan: LaunchPlan,
    journal: Journal,
    records: Records,
    status: int,
    pauses_s: Sequence[float],
    *,
    unstarted: Mapping[str, str],
) -> bool:
    """Have the job started again if its agents got a TERM for it before one of them had claimed the allocation.

    No agent could be told what the TERM means, so they have left as those of a run that a person stops, or died of it
    where they did not even listen yet. So it is if srun could not start all of them, without the nodes `unstarted`. No
    record counts such starts: Slurm does, but not where another job takes the place of each.
    """
    is_countable = plan.requeue.by == "requeue" and not journal.next_start.has_chained()
    is_countable = is_countable and journal.next_start.restart_count < plan.requeue.max
    is_lost = bool(unstarted) and is_countable
    if not (status in _ENDS_AT_TERM or is_lost) or records.result is not None or _is_end_wanted(journal):
        return False
    outlook = journal.next_start.outlook()
    if outlook is not None and outlook.restarts > journal.next_start.restart_count:
        return True
    reason, avoid = _reason_in(outlook), None
    if reason is None and is_lost and outlook is not None and outlook.state is JobState.RUNNING:
        reason, avoid = NODE_LOST, tuple(unstarted)
    if reason is None or journal.next_start.find_refusal(reason) or _is_cancelled(journal, outlook):
        return False
    if avoid is not None:
        _say(describe_unstarted(unstarted))
        journal.next_start.note(reason, avoid, is_claimed=False)
    if ask_for_another_start(journal, say=_say, pauses_s=pauses_s, avoid=avoid):
        return False
    print(f"hpc_elastic: {describe_reason(reason)} before an agent had begun; the job is started again", flush=True)
    return True


def _is_cancelled(journal: Journal, outlook: JobOutlook | None) -> bool:
    """Return whether a person has cancelled this job, perhaps within the grace of a preemption."""
    return outlook is not None and outlook.state is not JobState.RUNNING and journal.next_start.is_cancelled()


def _find_unstarted(layout: RunLayout, job_id: str, nodes: Sequence[str]) -> dict[str, str]:
    """Return the nodes on which srun could not start an agent in this start of the job, with the reasons."""
    return find_unstarted(last_script_lines(layout.script_output(job_id)), nodes)


def _refused(plan: LaunchPlan, journal: Journal, evidence: Evidence, reason: str, refusal: str) -> Conclusion:
    """Write the result of a run whose job is not started again."""
    cause = f"{journal.next_start.describe(reason)}; {refusal}"
    outcome = Outcome(state=RunState.FAILED, exit_code=ExitCode.NODE_LOST, reason=reason, cause=cause)
    return _write(plan, journal, evidence, outcome)


def judge(evidence: Evidence) -> Outcome:
    """Return how the run ended, as far as the evidence proves it."""
    records, status = evidence.records, evidence.status
    if records.is_finished:
        return Outcome(
            state=RunState.SUCCEEDED, exit_code=ExitCode.SUCCESS, reason="succeeded", cause="every rank exited 0"
        )
    failures = {rank: failure for node in evidence.nodes for rank, failure in node.failures.items()}
    # Where a node is UNHEALTHY at the end, the failures so far were ignored and its other workers ran on.
    fatal = [failure for node in evidence.nodes if node.is_failed() for failure in node.failures.values()]
    ended = "and the agents ended before one could write a result"
    crash = next((node for node in evidence.nodes if node.detail), None)
    spent = evidence.latest.spend.restarts if evidence.latest is not None else 0
    code, reason, cause = ExitCode.NODE_LOST, "", ""
    if evidence.is_stop_requested:
        code, reason, cause = ExitCode.STOPPED, "stop_requested", f"the run was cancelled, {ended}"
    elif evidence.is_out_of_time:
        reason, cause = "time_limit", f"the time limit ended the run, {ended}"
    elif evidence.over_memory:
        return _killed_for_memory(evidence, failures)
    elif _is_launch_failed(evidence):
        reason, cause = NODE_LOST, f"{describe_unstarted(evidence.unstarted)}, so that no agent went on"
    elif crash is not None:
        reason = "agent_failed"
        cause = f"the agent of {crash.node} failed: {crash.detail.strip().splitlines()[-1]}"
    elif evidence.complaint:
        known = {one.value for one in ExitCode} - {ExitCode.SUCCESS.value}  # a launcher may lose the agents' status
        code = ExitCode(status) if status in known else ExitCode.RUN_DIRECTORY
        reason, cause = "agent_failed", evidence.complaint
    elif fatal and spent >= evidence.max_restarts:
        first = min(fatal, key=lambda failure: failure.timestamp)
        what = f"rank {first.rank} on {first.node} failed: {first.message}"
        code, reason, cause = ExitCode.WORKERS_FAILED, "restarts_used_up", f"{what}; {ended.removeprefix('and ')}"
    elif evidence.cancelled_step:
        what = f"step {evidence.cancelled_step} of the job, in which the agents ran, was cancelled"
        code, reason, cause = ExitCode.STOPPED, "terminated", f"{what}, {ended}"
    if not reason:
        return _without_result(evidence, failures)
    state = RunState.CANCELLED if code is ExitCode.STOPPED else RunState.FAILED
    return Outcome(state=state, exit_code=code, reason=reason, cause=cause, failures=failures)


def _killed_for_memory(evidence: Evidence, failures: dict[str, FailureRecord]) -> Outcome:
    """Return the outcome of a run whose scheduler kills a step on all nodes if it takes too much memory on one."""
    told = ", ".join(f"{node} ({how_much})" for node, how_much in evidence.over_memory.items())
    cause = f"the scheduler killed all agents with their workers, which went over the job's memory on {told}"
    node = next(iter(evidence.over_memory))
    attempt = evidence.latest.attempt if evidence.latest is not None else 0
    return Outcome(
        state=RunState.FAILED,
        exit_code=ExitCode.NODE_LOST,
        reason="out_of_memory",
        cause=cause,
        failures=failures,
        root_cause=RootCause(attempt=attempt, failure_class=FailureClass.OUT_OF_MEMORY.value, line=cause, node=node),
    )


def _without_result(evidence: Evidence, failures: dict[str, FailureRecord]) -> Outcome:
    status, latest = evidence.status, evidence.latest
    cause = f"all agents ended before one could write a result; the highest exit status was {describe(status)}"
    if evidence.launch_error:
        told = describe_unstarted(evidence.unstarted) or f"srun gave up: {printable_line(evidence.launch_error)}"
        cause = f"{told}; {cause}"
    lost = None
    if signal_name(status):
        # The status is the highest one: of the other agents it is known only that they have ended, too.
        who = f"all agents ({name_some(latest.members)})" if latest is not None else "all agents"
        cause = cause.replace("all agents", who, 1)
        attempt = latest.attempt if latest is not None else 0
        lost = RootCause(attempt=attempt, failure_class=FailureClass.AGENT_LOST.value, line=cause)
    return Outcome(
        state=RunState.UNKNOWN,
        exit_code=ExitCode.NODE_LOST,
        reason="no_result",
        cause=cause,
        failures=failures,
        root_cause=lost,
    )


def signal_name(status: int) -> str:
    """Return the signal that an exit status tells of, as a shell reports it; empty if it tells of none."""
    return {int(one): one.name for one in signal.Signals}.get(status - 128, "")


def describe(status: int) -> str:
    """Describe an exit status as a shell reports it, with the name of the signal if there was one."""
    name = signal_name(status)
    return f"{status} ({name})" if name else str(status)


def _why_no_agent_began(layout: RunLayout, start: tuple[str, int]) -> str:
    """Return what an agent gave up for before one had claimed the allocation, for the script's last line."""
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = sorted(os.listdir(layout.agents))
    complaints = (read_complaint(os.path.join(layout.agents, name), start) for name in names)
    return next(filter(None, complaints), "")


def _gather(layout: RunLayout, plan: LaunchPlan, journal: Journal, records: Records, status: int) -> Evidence:
    first, world = records.first, records.world
    assert first is not None
    names = [node.node for node in world.nodes] if world is not None else list(first.nodes)
    heads = [world.head if world is not None else first.node, *names]
    start = (first.job_id, first.restart_count)
    complaints = (read_complaint(layout.agent_output(node), start) for node in dict.fromkeys(heads))
    return Evidence(
        records=records,
        status=status,
        latest=journal.latest_attempt(),
        nodes=_node_results(layout, journal, records),
        complaint=next(filter(None, complaints), ""),
        cancelled_step=_find_cancelled_step(layout, first) if status == _KILLED else "",
        launch_error=find_launch_error(last_script_lines(layout.script_output(first.job_id))),
        unstarted=_find_unstarted(layout, first.job_id, first.nodes),
        over_memory=_find_over_memory(layout, first.nodes),
        is_stop_requested=_is_end_wanted(journal),
        is_out_of_time=is_local(first.job_id) and _is_out_of_time(first, plan.time_s),
        max_restarts=plan.restart.max_restarts,
    )


def _find_over_memory(layout: RunLayout, nodes: Sequence[str]) -> dict[str, str]:
    """Return the nodes on which the scheduler found this job over its memory, and how much it had of how much."""
    number = find_job_number(os.environ)
    told = {node: find_over_memory(last_lines(layout.agent_output(node)), number) for node in nodes}
    return {node: how_much for node, how_much in told.items() if how_much}


def _find_cancelled_step(layout: RunLayout, first: AllocationClaim) -> str:
    """Return the agents' step if the scheduler wrote that it was cancelled: to the output of its first node."""
    return find_cancelled_step(os.environ, last_lines(layout.agent_output(first.nodes[0]))) if first.nodes else ""


def _is_end_wanted(journal: Journal) -> bool:
    journal.requests()
    return journal.is_end_wanted


def _node_results(layout: RunLayout, journal: Journal, records: Records) -> tuple[NodeResult, ...]:
    world = records.world
    if world is None:
        return ()
    attempts = {role.role: role.attempt for role in world.roles}
    for attempt in set(attempts.values()):
        with contextlib.suppress(OSError):  # without a listing NFS remembers for a minute that a record was missing
            os.listdir(os.path.dirname(layout.node_result(attempt, world.head)))
    found = (journal.node_result(attempts[node.role], node.node) for node in world.nodes)
    return tuple(record for record in found if record is not None)


def _is_out_of_time(first: AllocationClaim, time_s: float | None) -> bool:
    """Return whether a local run has reached its script's time limit, which began to count before the claim."""
    if time_s is None:
        return False
    return time.time() - datetime.fromisoformat(first.time.replace("Z", "+00:00")).timestamp() >= time_s


def _result(run: str, outcome: Outcome, evidence: Evidence, started: str) -> RunResultRecord:
    first, latest = evidence.records.first, evidence.latest
    assert first is not None
    return RunResultRecord(
        run=run,
        state=outcome.state,
        exit_code=int(outcome.exit_code),
        reason=outcome.reason,
        cause=outcome.cause,
        attempts=latest.attempt if latest is not None else 0,
        restarts=latest.spend.restarts if latest is not None else 0,
        failures=outcome.failures,
        return_values={},
        nodes=latest.members if latest is not None else first.nodes,
        started=started,
        ended="",
        written_by=WRITTEN_BY,
        root_cause=outcome.root_cause,
    )
