"""One node's agent: carries out what its member decides, and its head if it has one.

Theory of operation. Machines (`membership`) are called with what happened and return actions; this
module turns connections, exits, timers, signals and finished work into those calls, on one event
loop that never blocks. What may block has a thread: `disk` for the run directory, `processes` for
starting and finding processes. An exception anywhere ends the agent; the guard then kills what is
left.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from hpc_elastic.agent.allocation import Allocation
from hpc_elastic.agent.background import BackgroundThread
from hpc_elastic.agent.coordinator import Coordinator, become_head
from hpc_elastic.agent.door import Door, most_strangers
from hpc_elastic.agent.failures import record_failure
from hpc_elastic.agent.group import LocalWorkers
from hpc_elastic.agent.guard_link import GuardLink
from hpc_elastic.agent.journal import Journal
from hpc_elastic.agent.network import listen_on_first
from hpc_elastic.agent.preparation import NodeReport, describe_node, examine_node
from hpc_elastic.agent.refusal import Refuser
from hpc_elastic.agent.search import HeadSearch
from hpc_elastic.agent.signals import AgentSignals
from hpc_elastic.agent.spawn import StartFailedError, WorkerOrder
from hpc_elastic.agent.tasks import Tasks
from hpc_elastic.agent.telemetry import Telemetry
from hpc_elastic.agent.transport import Connection, Receiver, connection_factory
from hpc_elastic.errors import ExitCode, RunDirectoryError
from hpc_elastic.membership.actions import (
    Action,
    Leave,
    Level,
    Note,
    RecordFailure,
    Say,
    Seek,
    StartWorkers,
    StopWorkers,
    Tell,
    WriteNodeResult,
)
from hpc_elastic.membership.authentication import Scope
from hpc_elastic.membership.member import Member
from hpc_elastic.membership.messages import Message, StopManner, Welcome
from hpc_elastic.membership.ports import port_sequence
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import Endpoint

HEAD_CLOSES_WITHIN_S = 10.0
DISK_DRAINS_WITHIN_S = 30.0


class Supervisor:
    """The agent of one node, for one start of the job.

    Args:
        plan: the launch plan.
        allocation: this node's place.
        secret: the run's secret.
        journal: the run directory.
    """

    def __init__(self, plan: LaunchPlan, allocation: Allocation, *, secret: bytes, journal: Journal) -> None:
        self._plan = plan
        self._place = allocation
        self._journal = journal
        self._scope = Scope(run=plan.run, job_id=allocation.job_id, restart_count=allocation.restart_count)
        trace = (lambda text: self._say(text, "debug")) if plan.log_level == "debug" else None
        self._make_connection = connection_factory(secret, self._scope, trace=trace)
        self._loop = asyncio.get_running_loop()
        self._disk = BackgroundThread("disk", self._loop)
        self._processes = BackgroundThread("processes", self._loop)
        self._leave: asyncio.Future[Leave] = self._loop.create_future()
        self._telemetry = Telemetry(plan, allocation, journal=journal, disk=self._disk, say=self._say)
        self._tasks = Tasks()
        self._timer: asyncio.TimerHandle | None = None
        self._head: Coordinator | None = None
        self._refuser: Refuser | None = None
        self._connection: Connection | None = None
        self._door: Door | None = None
        self._stopping: StopWorkers | None = None

    async def run(self) -> int:
        """Takes part until the run is over or this agent cannot go on.

        Returns:
            The exit code.

        Raises:
            HpcElasticError: there is no head to be joined, and none to become.
        """
        self._loop.set_exception_handler(self._crashed)
        self._guard = await self._processes.call(self._start_guard)
        report = await self._disk.call(lambda: examine_node(self._plan, self._place, os.environ))
        await self._set_up(report)
        self._signals = AgentSignals(
            self._loop, is_local=self._place.is_local, stop=self._got_signal, insist=self._hurry, say=self._say
        )
        self._tasks.run(self._group.warm_up())
        self._tasks.run(self._find_head())
        leave = await self._leave
        await self._shut_down()
        return leave.exit_code

    def _start_guard(self) -> GuardLink:
        return GuardLink(self._plan.package_dir, run_dir=self._plan.run_dir, node=self._place.node)

    async def _set_up(self, report: NodeReport) -> None:
        place, plan = self._place, self._plan
        self._group = LocalWorkers(
            plan,
            place,
            report,
            thread=self._processes,
            guard_pid=self._guard.pid,
            say=self._say,
            on_exit=self._worker_exited,
            on_broken=lambda reason: self._apply(self._member.node_broke(reason)),
        )
        self._ports = port_sequence(plan.run, place.job_id, plan.network.port_range)
        # Names may resolve to another interface than the one published: listen on all of them.
        listener = listen_on_first(report.address if place.is_local else "", self._ports)
        self._own = Endpoint(address=report.address, port=listener.getsockname()[1])
        self._join = describe_node(plan, place, report, agent=self._own, store_port=self._group.store_port)
        self._member = Member(self._join, run=plan.run, lease_s=plan.elastic.lease_s)
        most = most_strangers(len(place.nodes))
        self._door = Door(listener, self._make_connection, self, most=most, say=lambda text: self._say(text, "warning"))

    # Of transport.Receiver: other agents' connections, which are the head's if it is here.

    def opened(self, connection: Connection) -> None:
        """Another agent connected."""
        if self._answering is None:
            connection.close("this agent is not the head")

    def received(self, connection: Connection, message: Message) -> None:
        """Another agent sent something."""
        if self._answering is not None:
            self._answering.received(connection, message)

    def closed(self, connection: Connection, why: str) -> None:
        """Another agent's connection is over."""
        if self._answering is not None:
            self._answering.closed(connection, why)

    @property
    def _answering(self) -> Receiver | None:
        """Who talks to the other agents, if this one does."""
        return self._head or self._refuser

    # Of search.HeadListener: this node's connection to the head.

    def head_found(self, connection: Connection) -> None:
        """There is a head, and it is another agent."""
        self._connection = connection
        self._apply(self._member.connected(self._loop.time(), is_joined=True))

    def head_said(self, message: Message) -> None:
        """The head sent something."""
        if isinstance(message, Welcome):
            self._journal.allocation = message.allocation
        self._apply(self._member.received(message, self._loop.time()))

    def head_lost(self, why: str) -> None:
        """The connection to the head is over."""
        self._connection = None
        self._apply(self._member.disconnected(why, is_dead=False))

    async def _find_head(self) -> None:
        search = HeadSearch(
            self._plan,
            self._place,
            ports=self._ports,
            own=self._own,
            journal=self._journal,
            disk=self._disk,
            make=self._make_connection,
        )
        try:
            is_found = await search.find(self._join, self, self._say)
        except RunDirectoryError as error:
            await self._refuse(error)
            raise
        if not is_found:
            self._head = await become_head(
                self._plan,
                self._place,
                self._join,
                journal=self._journal,
                disk=self._disk,
                telemetry=self._telemetry,
                to_own_member=self.head_said,
            )
            self._apply(self._member.connected(self._loop.time(), is_joined=False))

    async def _refuse(self, error: RunDirectoryError) -> None:
        """Tells a person, and the others, who look for their head here."""
        if self._place.node_id == 0:
            self._refuser = Refuser(error, len(self._place.nodes) - 1)
            self._journal.is_head = True
            await self._disk.call(lambda: self._journal.say(error.message))
            await self._refuser.wait()

    # What happens on this node.

    def _worker_exited(self, attempt: int, local_rank: int, exitcode: int) -> None:
        self._apply(self._member.worker_exited(attempt, local_rank, exitcode, self._loop.time()))

    def _got_signal(self, name: str, have_workers: bool) -> None:
        if self._place.is_local and self._is_stop_of_a_person():
            self._hurry()  # who asked before, in another way
        self._apply(self._member.terminated(name, have_workers=have_workers))

    def _is_stop_of_a_person(self) -> bool:
        """A stop is under way, and not because of a TERM on its way to this agent too."""
        stop = self._stopping
        return stop is not None and stop.manner is StopManner.GRACE and not stop.is_term_coming

    def _hurry(self) -> None:
        self._group.hurry()

    # What the member asks for.

    def _apply(self, actions: list[Action]) -> None:
        for action in actions:
            self._act(action)
        self._guard.set_deadline(self._member.fence_deadline())
        if self._timer is not None:
            self._timer.cancel()
        if self._member.next_tick() < float("inf"):
            self._timer = self._loop.call_at(self._member.next_tick(), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._apply(self._member.tick(self._loop.time()))

    def _act(self, action: Action) -> None:
        self._telemetry.saw(action)
        if isinstance(action, Tell):
            self._tell(action.message)
        elif isinstance(action, StartWorkers):
            self._tasks.run(self._initialize_workers(action))
        elif isinstance(action, StopWorkers):
            self._stop_workers(action)
        elif isinstance(action, RecordFailure):
            self._tasks.run(self._record_failure(action))
        elif isinstance(action, WriteNodeResult):
            self._tasks.run(self._write_node_result(action))
        elif isinstance(action, Seek):
            self._apply(self._member.leaves(int(ExitCode.NODE_LOST), f"{action.lost.node} was lost: {action.lost.why}"))
        elif isinstance(action, Say):
            self._say(action.text, action.level)
        elif isinstance(action, Note):
            note = action
            self._disk.spare(lambda: self._journal.note(note.name, note.message, note.attempt, dict(note.metadata)))
        elif isinstance(action, Leave) and not self._leave.done():
            self._leave.set_result(action)

    def _tell(self, message: Message) -> None:
        if self._head is not None:
            self._loop.call_soon(self._head.received_from_own, message)
        elif self._connection is not None:
            self._connection.send(message)

    async def _initialize_workers(self, action: StartWorkers) -> None:
        attempt = action.assign.attempt
        try:
            await self._group.initialize_workers(action.assign)
        except StartFailedError as error:
            for order in self._group.orders():
                await self._record(order, pid=0, exitcode=1, message=str(error))
        else:
            text = f"{self._join.workers} workers"
            self._disk.spare(lambda: self._journal.note("workers.started", text, attempt, {}))
            self._apply(self._member.workers_started(attempt, self._group.pids()))

    def _stop_workers(self, action: StopWorkers) -> None:
        if self._stopping is not None:
            if action.manner is StopManner.FENCE:
                self._hurry()
            return
        self._stopping = action
        self._tasks.run(self._stop(action))

    async def _stop(self, action: StopWorkers) -> None:
        try:
            is_terminated = action.is_terminated or (action.is_term_coming and await self._signals.is_term_here())
            unkillable = await self._group.stop_workers(action.manner, is_terminated=is_terminated)
        finally:
            self._stopping = None
        self._apply(self._member.workers_stopped(action.attempt, unkillable, self._group.store_port))

    async def _record_failure(self, action: RecordFailure) -> None:
        order, pid = self._group.order_of(action.local_rank)
        await self._record(order, pid=pid, exitcode=action.exitcode)

    async def _record(self, order: WorkerOrder, *, pid: int, exitcode: int, message: str = "") -> None:
        layout, node, role = RunLayout(self._plan.run_dir), self._place.node, self._join.role
        failure = await self._disk.call(
            lambda: record_failure(layout, order, node=node, role=role, pid=pid, exitcode=exitcode, message=message)
        )
        self._apply(self._member.failure_recorded(failure))

    async def _write_node_result(self, action: WriteNodeResult) -> None:
        started = self._group.started
        await self._disk.call(lambda: self._journal.write_node_result(action.result, started=started))
        self._apply(self._member.node_result_written(action.result))

    # The frame.

    def _say(self, text: str, level: Level = "info") -> None:
        self._disk.spare(lambda: self._journal.say(text, level))

    def _crashed(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, Exception):
            error = RuntimeError(str(context.get("message")))
        if not self._leave.done():
            self._leave.set_exception(error)

    async def _shut_down(self) -> None:
        """Leaves in order: the head last of all, and nothing of this agent after it."""
        if self._timer is not None:
            self._timer.cancel()
        if self._head is not None:
            self._head.own_member_left()
            await asyncio.wait([asyncio.ensure_future(self._head.over.wait())], timeout=HEAD_CLOSES_WITHIN_S)
            await self._head.close()
        if self._connection is not None:
            self._connection.close()
        if self._door is not None:
            await self._door.close()
        await self._group.shut_down()
        await self._tasks.cancel()
        await self._processes.call(self._guard.dismiss)
        await self._disk.close(DISK_DRAINS_WITHIN_S)
        await self._processes.close(DISK_DRAINS_WITHIN_S)
