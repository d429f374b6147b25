"""The program that runs one node's agent: `launch.py hpc_elastic.agent.main RUN_DIR [HOST_SIDE]`.

HOST_SIDE is the folder through which an agent in an image reaches the shell that has started its container.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from hpc_elastic.agent.net.reach import OTHER_PORTS, find_answering_port
from hpc_elastic.agent.records.another_start import ask_for_another_start
from hpc_elastic.agent.records.journal import Journal
from hpc_elastic.agent.records.log_room import reserve_room
from hpc_elastic.agent.records.retries import retry_here
from hpc_elastic.agent.records.telemetry import record_crash
from hpc_elastic.agent.supervisor import Supervisor
from hpc_elastic.agent.system.event_loop import run
from hpc_elastic.agent.system.processes import become_subreaper
from hpc_elastic.errors import ExitCode, FileSystemError, HpcElasticError, RunDirectoryError, SchedulerError
from hpc_elastic.membership.actions import Leave
from hpc_elastic.membership.authentication import SECRET_BYTES
from hpc_elastic.plan.launch_plan import LaunchPlan, parse_plan
from hpc_elastic.printable import printable
from hpc_elastic.rundir.complaint import complaint
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import NodeResult, WorkerState
from hpc_elastic.rundir.store import list_numbers
from hpc_elastic.scheduler.allocation import Allocation
from hpc_elastic.scheduler.questions import JobQuestions, end_job
from hpc_elastic.scheduler.registry import derive_allocation, derive_start
from hpc_elastic.scheduler.slurm.host_side import enter
from hpc_elastic.scheduler.slurm.step import launch_address
from hpc_elastic.whole_lines import write_line

STDERR = 2
# About an hour: a controller that restarts, or whose machine is exchanged, is back by then.
END_AGAIN_AFTER_S = (5.0, 10.0, 20.0, 40.0, *[60.0] * 60)
# Looks at a batch script that may be there again: NFS may hide the result from it for 30 s, and its `after` block may
# take long, which stores results, say. A script that has not ended after an hour is taken for one that never does.
SCRIPT_LOOKS_AFTER_S = (60.0, *[30.0] * 118)


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
    secret = retry_here(lambda: _read_secret(layout), say=_complain)
    allocation = derive_allocation(os.environ)
    questions = JobQuestions(complain=lambda text: journal.say(text, "warning"))
    journal = Journal(layout, plan, allocation, questions=questions)
    become_subreaper()
    reserve_room(STDERR)
    # A name server that does not answer costs 5 s or more for each look-up; the workers inherit this setting.
    os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
    _set_imports_apart()

    async def supervise() -> Leave:
        supervisor = Supervisor(plan, allocation, secret=secret, journal=journal, can_end_job=questions.can_end_job)
        return await supervisor.run()

    try:
        leave = run(supervise())
    except HpcElasticError:
        raise
    except Exception:
        _record_crash(layout, plan, allocation, journal)
        return int(ExitCode.NODE_LOST)
    if leave.ends_job and leave.exit_code == ExitCode.REQUEUE:
        _start_again(journal, allocation.job_id)
    elif leave.ends_job and not allocation.is_local:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # it comes when the job ends without this agent
        if not _leaves_to_script(allocation, questions, journal.say):
            _end_job(allocation.job_id, journal.say)
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


def _start_again(journal: Journal, job_id: str) -> None:
    """Have the job started again, if its head has decided that: the batch script that would was lost with its node."""
    with contextlib.suppress(HpcElasticError):
        if journal.next_start.reason_of() is None or journal.next_start.is_requeued():
            return
        journal.say(f"the node of the batch script was lost: having job {job_id} started again")
        if refusal := ask_for_another_start(journal, say=lambda text: journal.say(text, "warning")):
            journal.say(f"job {job_id} is not started again: {refusal}", "error")


class _Questions(Protocol):
    """What is asked about a job whose batch script may be there again."""

    def is_over(self, job_id: str) -> bool | None: ...

    def dead_nodes(self, job_id: str, nodes: Collection[str]) -> frozenset[str]: ...


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


def _end_job(job_id: str, say: Callable[..., None], *, pauses_s: Sequence[float] = END_AGAIN_AFTER_S) -> None:
    """End the job, as the last act of this agent: the batch script that would end it was lost with its node.

    All other agents have left: where the controller does not answer, this one asks again, because a job that nobody
    ends holds all its nodes until its time limit.

    Args:
        job_id: the job.
        say: takes a line for the agent's log, and its level.
        pauses_s: the pauses after each try that fails; after the last one the agent gives up.
    """
    say(f"the node of the batch script was lost: ending job {job_id}")
    has_complained = False
    for pause_s in (*pauses_s, None):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it comes here and to the command, with nothing left to stop
        try:
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


def _record_crash(layout: RunLayout, plan: LaunchPlan, allocation: Allocation, journal: Journal) -> None:
    """Record that this agent crashed, in the node's result; the guard kills the workers when this process ends."""
    detail = traceback.format_exc()
    print(printable(detail), file=sys.stderr, flush=True)
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
