"""Runs one node's agent inside a torchrun: membership on an event loop in a thread of its own, and a guard process.

Theory of operation. This is `agent.supervisor` with another kind of workers: `membership` decides, torch's agent starts
and stops the workers, and `exchange` is between the two. If the process is killed, this thread ends with it; its
connections close, which tells the other nodes at once, and the guard kills the workers.

torch's agent checks only now and then whether it has to stop, so a fence takes a moment. The member's lease is shorter
than the head assumes, by the extra time that the guard waits: a lost node has no workers when the others rely on that.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from dataclasses import dataclass

from hpc_elastic.agent.departure import Departure
from hpc_elastic.agent.drivers.participation import Participation, Surroundings
from hpc_elastic.agent.guard.link import GuardLink
from hpc_elastic.agent.guard.process import kill_all
from hpc_elastic.agent.net.listener import allow_connections
from hpc_elastic.agent.net.transport import connection_factory
from hpc_elastic.agent.node.environment import NodeFacts
from hpc_elastic.agent.node.network import interface_of, listen_on_first, own_address
from hpc_elastic.agent.node.preparation import JobTies, NodeReport, describe_node, find_versions
from hpc_elastic.agent.records.journal import Journal
from hpc_elastic.agent.records.telemetry import Telemetry
from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.agent.system.event_loop import AgentEventLoop
from hpc_elastic.agent.system.processes import Marks, agent_id
from hpc_elastic.agent.system.tasks import Tasks
from hpc_elastic.deadline import Deadline
from hpc_elastic.errors import ExitCode, RunDirectoryError
from hpc_elastic.integrations.torchrun.exchange import Exchange, Failure, Over, TorchAgentStage
from hpc_elastic.integrations.torchrun.policy import TorchrunPolicy
from hpc_elastic.integrations.torchrun.run_directory import is_over_for, leave_run
from hpc_elastic.integrations.torchrun.stock_workers import StockOutputs, StockWorkers
from hpc_elastic.membership.actions import Leave, Level
from hpc_elastic.membership.authentication import Scope
from hpc_elastic.membership.lease import NEVER
from hpc_elastic.membership.ports import port_sequence
from hpc_elastic.membership.timing import TORCHRUN
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.rundir.error_file import FailedWorker, build_error
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import Endpoint
from hpc_elastic.rundir.store import write_json
from hpc_elastic.scheduler.allocation import Allocation
from hpc_elastic.scheduler.questions import JobQuestions

DISK_DRAINS_WITHIN_S = 10.0
LOOKS_WITHIN_S = 10.0  # for torch's agent, which checks every `--monitor-interval`
KILLED_WITHIN_S = 10.0  # a process that survives KILL runs none of its own code


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSetup:
    """The arguments of an agent; `address` is this node's, if torchrun was given one."""

    plan: LaunchPlan
    place: Allocation
    secret: bytes
    address: str | None = None


class TorchrunAgent:
    """The agent of one node, which runs from `start` until the run, or this node's part in it, is over.

    Args:
        setup: the plan, this node's place and the run's secret.
        exchange: the exchange with torch's agent.
    """

    def __init__(self, setup: AgentSetup, exchange: Exchange) -> None:
        self._plan, self._place = setup.plan, setup.place
        self._setup = setup
        self._exchange = exchange
        self.marks = Marks(run_dir=setup.plan.run_dir, node=setup.place.node, agent=agent_id(os.getpid()))
        self.interface: str | None = None
        self._deadline = Deadline.create()
        self._guard: GuardLink | None = None
        self._fenced_by = NEVER  # when this node began to end its part without telling the others
        self._is_set_up = False
        self._abandoned = False
        self._has_left = False
        self._thread = threading.Thread(target=self._run, name="hpc-elastic", daemon=True)

    def start(self) -> None:
        """Start the agent's thread."""
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the thread; return whether it has ended in time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def may_start(self) -> bool:
        """Return whether workers may start now: a process that was paused may have lost its head meanwhile."""
        return self._guard is not None and not self._deadline.has_passed

    def kill_workers(self) -> None:
        """Kill torch's workers and the processes that they have started; may be called from any thread."""
        kill_all(self.marks)

    # In the agent's thread.

    def _run(self) -> None:
        loop = AgentEventLoop()
        try:
            leave = loop.run_until_complete(self._take_part())
            self._exchange.end(_over(leave))
        except BaseException as error:
            self._exchange.end(_over(error))
        finally:
            self._exchange.listen(lambda _: None)
            loop.close()

    async def _take_part(self) -> Leave:
        plan, place = self._plan, self._place
        self._loop = asyncio.get_running_loop()
        self._departure = Departure(self._loop)
        self._tasks = Tasks()
        self._disk = BackgroundThread("disk", self._loop)
        self._processes = BackgroundThread("processes", self._loop)
        questions = JobQuestions(complain=lambda text: self._journal.say(text, "warning"))
        self._journal = Journal(RunLayout(plan.run_dir), plan, place, questions=questions)
        self._journal.log = sys.stderr  # where torchrun's own lines go
        allow_connections(len(place.nodes))
        self._guard = await self._processes.call(self._start_guard)
        self._tasks.run(self._guard.keep(self._processes, lambda text: self._say(text, "warning")))
        try:
            self._set_up(await self._disk.call(self._examine))
            self._tasks.run(self._part.heads.find())
            leave = await self._departure
            await self._leave_in_order(leave)
        except BaseException as error:
            await self._end_workers(_over(error))
            raise
        finally:
            await self._close()
        return leave

    async def _leave_in_order(self, leave: Leave) -> None:
        """Leave in order while torch's agent waits: a local head has to stay until others have heard of the end."""
        if self._abandoned:
            if self._exchange.stage is TorchAgentStage.AT_WORK:
                await self._end_workers(_over(leave))
            return
        if is_over_for(leave.exit_code):
            with contextlib.suppress(RunDirectoryError):
                await self._disk.call(lambda: leave_run(RunLayout(self._plan.run_dir), self._place.node))
        await self._part.close()
        self._has_left = True

    async def _end_workers(self, over: Over) -> None:
        """End all workers before connections close without a message: to the others such a close means no workers.

        torch's agent stops the workers at its next check; were they killed before, it would count a failure. If it does
        not check in time, the guard kills them, and then goes on looking for workers that start late.
        """
        self._exchange.end(over)  # from now on torch's agent takes no round
        if not self._is_set_up or self._exchange.stage is not TorchAgentStage.AT_WORK:
            return
        self._fenced_by = self._loop.time()
        self._move_deadline()
        await self._workers.wait_until_gone(TORCHRUN.guard_s)
        killing = self._processes.call(self.kill_workers)
        await asyncio.wait([killing], timeout=KILLED_WITHIN_S)

    async def _close(self) -> None:
        if self._is_set_up:
            self._workers.close()
            if not self._has_left:
                await self._part.abandon()
                await self._workers.wait_until_gone(LOOKS_WITHIN_S)  # until then the guard is needed
            await self._part.member.close()
        await self._tasks.cancel()
        if (
            self._guard is not None and self._exchange.stage is not TorchAgentStage.AT_WORK
        ):  # else it stays until this process ends
            await self._processes.call(self._guard.dismiss)
        await self._disk.close(DISK_DRAINS_WITHIN_S)
        await self._processes.close(DISK_DRAINS_WITHIN_S)

    def _start_guard(self) -> GuardLink:
        marks = self.marks
        return GuardLink(self._plan.package_dir, run_dir=marks.run_dir, node=marks.node, deadline=self._deadline)

    def _examine(self) -> NodeReport:
        """Find out this node's address and versions; blocks, as it may ask the name server."""
        plan, place = self._plan, self._place
        address = self._setup.address or own_address(place, plan.network)
        self.interface = interface_of(address)
        role = plan.roles[0]
        facts = NodeFacts(node=place.node, role=role, gloo_interface=self.interface)
        return NodeReport(address=address, facts=facts, versions=find_versions(role), problem=None)

    def _set_up(self, report: NodeReport) -> None:
        plan, place, disk = self._plan, self._place, self._disk
        self._workers = StockWorkers(
            self._exchange,
            plan,
            key=f"{place.job_id}/{place.node_id}",
            address=report.address,
            outputs=StockOutputs(
                finished=lambda attempt: self._part.member.worker_exited(attempt, 0, 0),
                restarts=lambda why: self._part.member.node_broke(why),
                failed=lambda attempt, failure: self._tasks.run(self._report(attempt, failure)),
                useless=self._abandon,
                kill=lambda: self._processes.best_effort(self.kill_workers),
            ),
        )
        ports = port_sequence(plan.run, place.job_id, plan.network.port_range)
        listener = listen_on_first(report.address if place.is_local else "", ports)
        own = Endpoint(address=report.address, port=listener.getsockname()[1])
        store_port = self._workers.store_port
        scope = Scope(run=plan.run, job_id=place.job_id, restart_count=place.restart_count)
        self._part = Participation(
            plan,
            place,
            join=describe_node(plan, place, report, JobTies(), agent=own, store_port=store_port),
            listener=listener,
            ports=ports,
            around=Surroundings(
                journal=self._journal,
                disk=disk,
                telemetry=Telemetry(plan, place, journal=self._journal, disk=disk, say=self._say),
                make=connection_factory(self._setup.secret, scope),
                leave=self._departure.leaves,
                moved=self._move_deadline,
                guard_deadline=lambda: self._deadline.value,
                say=self._say,
            ),
            profile=TORCHRUN,
            decide=TorchrunPolicy(restart=plan.restart).decide,
        )
        self._part.serve(self._workers, _NoTerm())
        self._is_set_up = True

    async def _report(self, attempt: int, failure: Failure) -> None:
        """Write what is known of a failure as the rank's error file, which the member then reads and completes."""
        path, error = RunLayout(self._plan.run_dir).error(attempt, failure.rank), failure.error
        if failure.message:
            rank, local_rank, node = failure.rank, failure.local_rank, self._place.node
            worker = FailedWorker(rank=rank, local_rank=local_rank, pid=0, node=node, attempt=attempt)
            now = time.time_ns()
            error = build_error(worker, failure_class="start_failed", message=failure.message, time_ns=now, exit_code=1)
        if error is not None:
            with contextlib.suppress(RunDirectoryError):
                await self._disk.call(lambda: write_json(path, error))
        self._part.member.worker_exited(attempt, failure.local_rank, failure.exitcode)

    def _abandon(self) -> None:
        """End this node's part at once, as it cannot start workers again; to the other nodes it is lost."""
        self._abandoned = True
        self._departure.leaves(
            Leave(exit_code=int(ExitCode.NODE_LOST), cause=f"{self._place.node} cannot start workers again")
        )

    def abandon(self) -> None:
        """End this node's part; may be called from another thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the part has ended already
            self._loop.call_soon_threadsafe(self._abandon)

    def _move_deadline(self) -> None:
        if self._guard is not None:
            self._guard.set_deadline(min(self._part.guard_deadline(), self._fenced_by + TORCHRUN.guard_s))

    def _say(self, text: str, level: Level = "info") -> None:
        self._disk.best_effort(lambda: self._journal.say(text, level))


def _over(end: Leave | BaseException) -> Over:
    if isinstance(end, Leave):
        return Over(exit_code=end.exit_code, cause=end.cause)
    return Over(exit_code=int(ExitCode.NODE_LOST), cause=str(end), error=end)


class _NoTerm:
    """A TermWatch that never reports a TERM: torch's agent handles signals itself, and stops its workers then."""

    async def is_term_here(self) -> bool:
        return False
