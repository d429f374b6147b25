"""The program that runs one node's agent: `launch.py hpc_elastic.agent.main RUN_DIR [HOST_SIDE]`.

HOST_SIDE is the folder through which an agent in an image reaches the shell that has started its container.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence

from hpc_elastic.agent.before_kill import ask_before_kill
from hpc_elastic.agent.job_end import see_to_job_end
from hpc_elastic.agent.lost_script import follow_lost_script
from hpc_elastic.agent.net.reach import Finding
from hpc_elastic.agent.records.journal import Journal
from hpc_elastic.agent.records.log_room import reserve_room
from hpc_elastic.agent.records.output_name import name_output
from hpc_elastic.agent.records.retries import retry_here
from hpc_elastic.agent.records.telemetry import record_crash
from hpc_elastic.agent.rendezvous.findings import Findings
from hpc_elastic.agent.supervisor import Supervisor
from hpc_elastic.agent.system.cpu_limit import warn_before_cpu_limit
from hpc_elastic.agent.system.event_loop import run
from hpc_elastic.agent.system.processes import become_subreaper
from hpc_elastic.agent.system.refusals import TIP, describe_refusal
from hpc_elastic.errors import ExitCode, FileSystemError, HpcElasticError, RendezvousCause, RunDirectoryError
from hpc_elastic.membership.actions import Leave
from hpc_elastic.membership.authentication import SECRET_BYTES
from hpc_elastic.plan.launch_plan import LaunchPlan, parse_plan
from hpc_elastic.printable import printable, printable_line
from hpc_elastic.rundir.complaint import complaint
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import NodeResult, WorkerState
from hpc_elastic.rundir.store import list_numbers, never_make
from hpc_elastic.scheduler.allocation import Allocation
from hpc_elastic.scheduler.questions import JobQuestions
from hpc_elastic.scheduler.registry import derive_allocation, derive_start
from hpc_elastic.scheduler.slurm.host_side import enter
from hpc_elastic.whole_lines import write_line

STDERR = 2


def main(arguments: Sequence[str]) -> int:
    """Run this node's agent to its end; return its exit code."""
    if len(arguments) not in (1, 2):
        print("usage: launch.py hpc_elastic.agent.main RUN_DIR [HOST_SIDE]", file=sys.stderr)
        return int(ExitCode.USAGE)
    try:
        if len(arguments) == 2:
            _enter(arguments[1])
        return _run(RunLayout(arguments[0]))
    except HpcElasticError as error:
        print(complaint(error.message, _start()), file=sys.stderr)
        if error.tip is not None:
            print(f"tip: {error.tip}", file=sys.stderr)
        return int(error.exit_code)


def _enter(host_side: str) -> None:
    """Get ready to run in an image.

    Raises:
        FileSystemError: the image does not have the folder.
    """
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)  # the shell outside ignores them, and so would every worker
    try:
        enter(host_side, os.environ)
    except OSError as error:
        reason = error.strerror or error
        raise FileSystemError(
            f"cannot read {host_side} in the image: {reason}", tip="the runtime has to mount it, at the same path"
        ) from error


def _start() -> tuple[str, int] | None:
    with contextlib.suppress(HpcElasticError):
        return derive_start(os.environ)
    return None


def _run(layout: RunLayout) -> int:
    plan = parse_plan(retry_here(lambda: _read(layout.plan), say=_complain).decode())
    never_make(layout.root)
    secret = retry_here(lambda: _read_secret(layout), say=_complain)
    allocation = derive_allocation(os.environ)
    questions = JobQuestions(complain=lambda text: journal.say(text, "warning"))
    journal = Journal(layout, plan, allocation, questions=questions)
    become_subreaper()
    warn_before_cpu_limit()
    name_output(layout, allocation.node, STDERR)
    reserve_room(STDERR)
    # A name server that does not answer costs 5 s or more for each look-up; the workers inherit this setting.
    os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
    _set_imports_apart()

    async def supervise() -> Leave:
        supervisor = Supervisor(
            plan,
            allocation,
            secret=secret,
            journal=journal,
            can_end_job=questions.can_end_job,
            leaving=lambda leave: ask_before_kill(leave, allocation, journal),
        )
        return await supervisor.run()

    try:
        leave = run(supervise())
    except HpcElasticError:
        raise
    except Exception as error:
        _record_crash(layout, plan, allocation, journal, error)
        return int(ExitCode.NODE_LOST)
    see_to_job_end(leave, plan, allocation, journal, questions)
    follow_lost_script(leave, allocation, journal)
    if leave.exit_code == ExitCode.RUN_DIRECTORY:
        raise RunDirectoryError(leave.cause)  # no result could be written: `status` looks for these words
    return leave.exit_code


def _set_imports_apart() -> None:
    """Exclude the objects that imports have created from garbage collection, as they are never garbage.

    A full collection starts when there are a quarter more objects than the last one left. If the 28,000 objects of the
    imports were counted, the reference cycles that restarts leave would be kept for hundreds of attempts.
    """
    gc.collect()
    gc.freeze()
    gc.collect()  # so that the next threshold follows from what is left


def _complain(text: str) -> None:
    write_line(sys.stderr, f"hpc-elastic agent: {text}")


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise FileSystemError(f"cannot read {path}: {error.strerror}") from error


def _read_secret(layout: RunLayout) -> bytes:
    """Read the run's secret and check its length; a shorter secret, an empty one above all, could be guessed."""
    secret = _read(layout.secret)
    if len(secret) < SECRET_BYTES:
        raise RunDirectoryError(
            f"{layout.secret} holds {len(secret)} bytes, not {SECRET_BYTES}: it was changed after the submission",
            tip="submit the job again",
        )
    return secret


def _record_crash(
    layout: RunLayout, plan: LaunchPlan, allocation: Allocation, journal: Journal, error: Exception
) -> None:
    """Record that this agent crashed, for people and for the head; the guard kills the workers when this process ends.

    What the system refuses is told in one line; any other error is a defect of ours, and its traceback is shown.
    """
    traced = "".join(traceback.format_exception(error))
    refusal = describe_refusal(error)
    if refusal is None:
        print(printable(traced), file=sys.stderr, flush=True)
    cause = refusal or printable_line(traced.strip().splitlines()[-1])
    print(complaint(cause, _start()), file=sys.stderr, flush=True)
    if refusal is not None:
        print(f"tip: {TIP}", file=sys.stderr, flush=True)
    detail = traced if refusal is None else f"{traced}{refusal}\n"
    failed = Finding(cause=RendezvousCause.AGENT_FAILED, detail=f"cannot take part, for its agent failed: {cause}")
    Findings(plan, allocation).write(failed, tries=0, gave_up=True, versions={})
    if journal.is_head:
        journal.note_failure()
    attempt = 0
    with contextlib.suppress(RunDirectoryError):
        attempt = (list_numbers(layout.attempts) or [0])[-1]
    record_crash(plan, allocation, journal, attempt=attempt, detail=detail)
    record = NodeResult(
        run=plan.run,
        attempt=attempt,
        node=allocation.node,
        state=WorkerState.UNKNOWN,
        role=plan.role_on(allocation.node_id, len(allocation.nodes)).name,
        ranks=(),
        pids={},
        reason="the agent failed",
        failures={},
        return_values={},
        detail=detail,
        started="",
        ended="",
    )
    with contextlib.suppress(RunDirectoryError):
        journal.write_node_result(record, started=time.time())
