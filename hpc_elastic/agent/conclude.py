"""Writes the result of a run whose agents have all ended without one: what the script does last.

    PYTHON launch.py hpc_elastic.agent.conclude RUN_DIR STATUS

Theory of operation. The script calls it when every process that it launched has ended and there is no result: a SIGKILL
or the memory limit has taken the whole step, say. It writes what the records prove, and else that the outcome is
unknown. It writes nothing where the run may go on: the scheduler starts this job again, or does not say; the agents
left in order to be started again; the run's latest allocation is another job's, which is at work perhaps; or this start
has not claimed an allocation, and `status` knows more of that than the records do.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from hpc_elastic.agent.allocation import Allocation, derive_start
from hpc_elastic.agent.insistence import insist_here
from hpc_elastic.agent.journal import Journal
from hpc_elastic.errors import ExitCode, HpcElasticError
from hpc_elastic.membership.succession import Records
from hpc_elastic.plan.launch_plan import parse_plan
from hpc_elastic.rundir.complaint import read_complaint
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import AllocationClaim, AttemptClaim, RunResult, RunState
from hpc_elastic.rundir.store import file_system_errors
from hpc_elastic.scheduler.liveness import JobQuestions
from hpc_elastic.scheduler.protocol import NodeQuestions

WRITTEN_BY = "script"
TRIES_FOR_S = 3.0  # the job is not to outlive its agents by much


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended whose agents cannot say it any more."""

    state: RunState
    exit_code: ExitCode
    reason: str
    cause: str


def main(arguments: Sequence[str]) -> int:
    """Writes the result if one is missing and nobody else will write it; returns an exit code."""
    if len(arguments) != 2 or not arguments[1].isdecimal():
        print("usage: launch.py hpc_elastic.agent.conclude RUN_DIR STATUS", file=sys.stderr)
        return int(ExitCode.USAGE)
    try:
        cause = insist_here(lambda: conclude(RunLayout(arguments[0]), int(arguments[1])), within_s=TRIES_FOR_S)
    except HpcElasticError as error:
        print(f"hpc_elastic: no agent wrote a result, and none can be written: {error.message}", file=sys.stderr)
        return int(error.exit_code)
    if cause:
        print(f"hpc_elastic: {cause}", file=sys.stderr)
    return int(ExitCode.SUCCESS)


def conclude(layout: RunLayout, status: int, questions: NodeQuestions | None = None) -> str:
    """Writes the result if one is missing and nobody else will write it.

    Args:
        layout: the run's.
        status: the highest exit status of what the script launched.
        questions: what the scheduler says.

    Returns:
        The cause of the result that is there now, for people; empty if there is none.

    Raises:
        HpcElasticError: the run directory cannot be read or written.
    """
    questions = questions or JobQuestions(complain=lambda text: print(f"hpc_elastic: {text}", file=sys.stderr))
    with file_system_errors(layout.plan, "read"), open(layout.plan, encoding="utf-8") as file:
        plan = parse_plan(file.read())
    job_id, restart_count = derive_start(os.environ)
    # The script belongs to no node; what is asked here does not depend on one.
    place = Allocation(
        job_id=job_id,
        restart_count=restart_count,
        array_task=None,
        node_id=0,
        nodes=(os.uname().nodename,),
        is_local=plan.scheduler == "local",
    )
    journal = Journal(layout, plan, place, questions=questions)
    records = journal.read_records()
    if records.first is None or (records.result is None and status == ExitCode.REQUEUE):
        return ""
    if records.result is None and journal.is_requeued() is not False:
        return ""
    latest = journal.latest_attempt()
    agents_output = layout.agent_output(records.world.head if records.world is not None else records.first.node)
    outcome = judge(
        records, status, is_stop_requested=journal.stop_request() is not None, complaint=read_complaint(agents_output)
    )
    written = journal.write_result(_result(plan.run, outcome, records.first, latest, journal.first_start()))
    return "" if isinstance(written, AttemptClaim) else written[1]


def judge(records: Records, status: int, *, is_stop_requested: bool, complaint: str) -> Outcome:
    """What the records prove of a run whose agents have ended; `complaint` is the head's last one."""
    if records.is_finished:
        return Outcome(
            state=RunState.SUCCEEDED, exit_code=ExitCode.SUCCESS, reason="succeeded", cause="every rank exited 0"
        )
    if is_stop_requested:
        return Outcome(
            state=RunState.CANCELLED,
            exit_code=ExitCode.STOPPED,
            reason="stop_requested",
            cause="the run was cancelled, and the agents ended before one could write a result",
        )
    if complaint:
        return Outcome(state=RunState.FAILED, exit_code=ExitCode.RUN_DIRECTORY, reason="agent_failed", cause=complaint)
    return Outcome(
        state=RunState.UNKNOWN,
        exit_code=ExitCode.NODE_LOST,
        reason="no_result",
        cause=f"all agents ended before one could write a result; the highest exit status was {describe(status)}",
    )


def describe(status: int) -> str:
    """An exit status as a shell has it, with the name of the signal if it was one."""
    number = status - 128
    names = {int(one): one.name for one in signal.Signals}
    return f"{status} ({names[number]})" if number in names else str(status)


def _result(run: str, outcome: Outcome, first: AllocationClaim, latest: AttemptClaim | None, started: str) -> RunResult:
    return RunResult(
        run=run,
        state=outcome.state,
        exit_code=int(outcome.exit_code),
        reason=outcome.reason,
        cause=outcome.cause,
        attempts=latest.attempt if latest is not None else 0,
        restarts=latest.spend.restarts if latest is not None else 0,
        failures={},
        return_values={},
        nodes=latest.members if latest is not None else first.nodes,
        started=started,
        ended="",
        written_by=WRITTEN_BY,
    )
