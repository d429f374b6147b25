"""Assembles and runs one node's agent from start to end: threads, guard, workers, listener and membership.

Theory of operation. State machines (`membership`) are called with events and return actions. Two
modules turn connections, exits, timers, signals and finished work into those calls, on one event loop
that never blocks: `local_member` drives this node's member and its workers, `head_side` the head of that
member, on another node or on this one. Blocking work has threads: `disk` for the run directory,
`processes` for starting and finding processes. An exception anywhere ends the agent; the guard then
kills the workers that are left.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from functools import partial

from hpc_elastic.agent.departure import Departure
from hpc_elastic.agent.drivers.job_clock import TimeLeft
from hpc_elastic.agent.drivers.participation import Participation, Surroundings
from hpc_elastic.agent.guard.link import GuardLink
from hpc_elastic.agent.health.examination import examination_of
from hpc_elastic.agent.keeper.link import KeeperLink, KeeperSettings
from hpc_elastic.agent.net.listener import allow_connections
from hpc_elastic.agent.net.transport import connection_factory
from hpc_elastic.agent.node.binding import WorkerPlaces, announce_places, choose_places
from hpc_elastic.agent.node.gpu_usage import GpuTool
from hpc_elastic.agent.node.network import listen_on_first
from hpc_elastic.agent.node.preparation import JobTies, NodeReport, describe_node, examine_job, examine_node
from hpc_elastic.agent.records.clock_steps import watch_clock
from hpc_elastic.agent.records.job_comment import keep_comment
from hpc_elastic.agent.records.journal import Journal
from hpc_elastic.agent.records.samples import SampleFile, Sampler
from hpc_elastic.agent.records.step_notes import StepNotes
from hpc_elastic.agent.records.telemetry import Telemetry
from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.agent.system.signals import AgentSignals
from hpc_elastic.agent.system.tasks import Tasks
from hpc_elastic.agent.workers.circumstances import Circumstances
from hpc_elastic.agent.workers.group import LocalWorkers
from hpc_elastic.agent.workers.stalls import Stalls
from hpc_elastic.agent.workers.worker_start import WorkerStart
from hpc_elastic.cgroup_memory import read_room
from hpc_elastic.deadline import Deadline
from hpc_elastic.errors import AllocationError
from hpc_elastic.membership.actions import Leave, Level, Note
from hpc_elastic.membership.authentication import Scope
from hpc_elastic.membership.ports import port_sequence
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import Endpoint
from hpc_elastic.scheduler.allocation import Allocation
from hpc_elastic.scheduler.slurm.host_side import open_signals
from hpc_elastic.stage_variables import STAGED_VARIABLE

DISK_DRAINS_WITHIN_S = 30.0
METRICS_EVERY_S = 60.0


class Supervisor:
    """The agent of one node, for one start of the job.

    Args:
        plan: the launch plan.
        allocation: this node's place in the allocation.
        secret: the run's secret.
        journal: the run directory.
        can_end_job: returns whether this node could end a job of the scheduler; blocks for some seconds at most.
        leaving: is called in a thread as this agent begins to leave, and may block.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        allocation: Allocation,
        *,
        secret: bytes,
        journal: Journal,
        can_end_job: Callable[[str], bool] = lambda _: False,
        leaving: Callable[[Leave], None] = lambda _: None,
    ) -> None:
        self._plan = plan
        self._place = allocation
        self._journal = journal
        self._can_end_job = can_end_job
        self._leaving = leaving
        self._gpus = GpuTool(self._say)
        self._health = examination_of(plan, allocation, os.environ)
        self._secret = secret
        self._scope = Scope(run=plan.run, job_id=allocation.job_id, restart_count=allocation.restart_count)
        trace = (lambda text: self._say(text, "debug")) if plan.log_level == "debug" else None
        self._make_connection = connection_factory(secret, self._scope, trace=trace)
        self._loop = asyncio.get_running_loop()
        self._disk = BackgroundThread("disk", self._loop)
        self._processes = BackgroundThread("processes", self._loop)
        self._departure = Departure(self._loop)
        self._telemetry = Telemetry(plan, allocation, journal=journal, disk=self._disk, say=self._say)
        self._tasks = Tasks()
        self._circumstances = Circumstances(plan.run_dir)
        self._time_left = TimeLeft(plan, allocation, self._loop.time())

    async def run(self) -> Leave:
        """Take part until the run is over or this agent cannot go on.

        Returns:
            The exit code, its cause, and whether this agent has to end the job.

        Raises:
            HpcElasticError: no head could be joined, and this agent cannot become head.
        """
        # Before any process is started, which would inherit the old limit.
        allow_connections(len(self._place.nodes), self._plan.most_workers_on_a_node)
        self._deadline = Deadline.create()
        places = await self._disk.call(lambda: choose_places(self._plan, self._place, os.environ))
        self._start = WorkerStart(
            self._plan,
            self._place,
            os.environ,
            thread=self._processes,
            deadline=self._deadline,
            say=self._say,
            threads=places.threads,
        )
        await self._start.start()
        self._guard = await self._processes.call(self._start_guard)
        self._tasks.run(self._guard.keep(self._processes, lambda text: self._say(text, "warning")))
        # Both run at the same time: a name server or a Slurm controller that does not answer delays only its own part.
        examine = partial(examine_job, self._place, os.environ, can_end_job=self._can_end_job)
        ties = self._loop.run_in_executor(None, examine)
        examining = self._loop.create_task(self._health.examine())
        report = await self._disk.call(lambda: examine_node(self._plan, self._place, os.environ, places))
        self._announce(places, report)
        self._set_up(report, await ties, await examining)
        if staged := os.environ.get(STAGED_VARIABLE):
            self._say(staged)
            self._note(Note(name="node.staged", message=staged, attempt=0, metadata={"node": self._place.node}))
        if self._part.member.join.is_launch_host:
            self._disk.best_effort(self._journal.note_launch_agent)
        self._tasks.run(self._group.warm_up())
        self._tasks.run(self._refresh_metrics())
        self._tasks.run(watch_clock(self._place.node, self._note, lambda text: self._say(text, "warning")))
        if self._plan.metrics_comment:
            self._tasks.run(keep_comment(self._journal, self._plan, self._place.job_id, self._say))
        self._tasks.run(self._part.heads.find())
        leave = await self._departure
        leaving = self._loop.run_in_executor(None, self._leaving, leave)
        await self._shut_down(leave)
        await leaving
        return self._part.completed(leave)

    def _start_guard(self) -> GuardLink:
        run_dir, node = self._plan.run_dir, self._place.node
        return GuardLink(self._plan.package_dir, run_dir=run_dir, node=node, deadline=self._deadline)

    def _set_up(self, report: NodeReport, ties: JobTies, unhealthy: str | None) -> None:
        place, plan = self._place, self._plan
        self._group = LocalWorkers(
            plan,
            place,
            report,
            thread=self._processes,
            start=self._start,
            guard=lambda: [*self._guard.pids(), *self._gpus.pids(), *self._health.pids()],
            say=self._say,
            on_exit=lambda attempt, rank, exitcode, is_after_stop: self._part.member.worker_exited(
                attempt, rank, exitcode, is_after_stop=is_after_stop
            ),
            on_broken=lambda reason: self._part.member.node_broke(reason),
            may_start=lambda: not self._deadline.has_passed,
            on_states_closed=self._states_closed,
            keeper=self._open_keeper(report.address) if plan.state.replicas else None,
        )
        ports = port_sequence(plan.run, place.job_id, plan.network.port_range)
        # Names may resolve to another interface than the one published: listen on all of them.
        listener = listen_on_first(report.address if place.is_local else "", ports)
        own = Endpoint(address=report.address, port=listener.getsockname()[1])
        join = describe_node(
            plan,
            place,
            report,
            ties,
            agent=own,
            store_port=self._group.store_port,
            unhealthy=unhealthy,
            keeper_port=self._group.keeper_port,
        )
        self._part = Participation(
            plan,
            place,
            join=join,
            listener=listener,
            ports=ports,
            time_left=self._time_left,
            around=Surroundings(
                journal=self._journal,
                disk=self._disk,
                telemetry=self._telemetry,
                make=self._make_connection,
                leave=self._departure.leaves,
                moved=self._move_deadline,
                guard_deadline=lambda: self._deadline.value,
                say=self._say,
            ),
        )
        self._watch_workers()
        self._part.serve(self._group, self._watch_signals(), self._circumstances, self._health.examine)

    def _watch_signals(self) -> AgentSignals:
        return AgentSignals(
            self._loop,
            is_local=self._place.is_local,
            has_got=self._guard.has_got,
            forget=self._guard.forget,
            pass_on=self._group.pass_on,
            stop=self._part.member.got_signal,
            escalate=self._group.hurry,
            say=self._say,
            outside=open_signals(os.environ),
        )

    def _open_keeper(self, address: str) -> KeeperLink | None:
        """Return the handle of this node's keeper, on whose port other nodes can dial from now on; None without one."""
        plan, place = self._plan, self._place
        key = f"{place.job_id}/keeper/{place.node_id}"
        try:
            listener = listen_on_first(address, port_sequence(plan.run, key, plan.network.port_range))
        except AllocationError as error:
            self._say(f"no copies of training states are kept on other nodes: {error.message}", "warning")
            return None
        settings = KeeperSettings(
            package_dir=plan.package_dir,
            secret=self._secret,
            scope=self._scope,
            rate=plan.state.rate,
            most=read_room().total * plan.state.limit_percent // 100,
        )
        return KeeperLink(settings, listener, thread=self._processes, say=self._say)

    def _watch_workers(self) -> None:
        """Set up what looks at the workers beside their ends: stalls, stacks and samples."""
        place, plan, member = self._place, self._plan, self._part.member
        self._group.explain_kills(self._circumstances.explain_kill)
        self._group.stalls = Stalls(
            plan,
            place,
            heartbeats=self._group.heartbeats,
            disk=self._disk,
            say=lambda text: self._say(text, "warning"),
            note=self._note,
            report=member.worker_stalled,
        )
        member.furthest_step = self._group.heartbeats.furthest_step
        member.waiting_ranks = lambda: self._group.stalls.waiting if self._group.stalls is not None else ()
        member.paused_ranks = lambda: self._group.paused
        member.stacks_asked = lambda request: self._tasks.run(self._take_stacks(request))
        member.save_asked = self._group.requested_saves.received
        self._group.requested_saves.answer = member.answer
        self._sampler = Sampler(
            SampleFile(RunLayout(plan.run_dir).samples(place.node)),
            run=plan.run,
            node=place.node,
            disk=self._disk,
            workers=self._group.running,
            gpus=self._gpus,
            progress=self._group.heartbeats.read,
        )
        self._sampler.start()
        self._telemetry.steps = StepNotes(self._group.heartbeats.read, self._note, later=self._loop.call_later)

    async def _refresh_metrics(self) -> None:
        while True:
            await asyncio.sleep(METRICS_EVERY_S)
            self._telemetry.refresh()

    def _move_deadline(self) -> None:
        self._guard.set_deadline(self._part.guard_deadline())

    def _say(self, text: str, level: Level = "info") -> None:
        self._disk.best_effort(lambda: self._journal.say(text, level))

    def _announce(self, places: WorkerPlaces, report: NodeReport) -> None:
        """Log where the workers run, and what is odd about the node, which the head tells of all nodes too."""
        lines, note = announce_places(self._plan, self._place, places)
        for text in (*lines, *report.remarks):
            self._say(text)
        if note is not None:
            self._note(note)

    def _states_closed(self, line: str, attempt: int) -> None:
        """Warn that no training state is saved on this node any more; may be called in any thread."""
        self._say(line, "warning")
        metadata = {"node": self._place.node}
        self._note(Note(name="state.closed", message=line, attempt=attempt, metadata=metadata))

    async def _take_stacks(self, request: str) -> None:
        if self._group.stalls is not None:
            await self._group.stalls.take_stacks(request)

    def _note(self, note: Note) -> None:
        moment = time.time_ns()
        self._disk.best_effort(lambda: self._journal.note(note, moment))

    async def _shut_down(self, leave: Leave) -> None:
        """End all parts in order: membership first, in which a local head ends after its members, the threads last."""
        self._sampler.stop()
        if self._telemetry.steps is not None:
            self._telemetry.steps.end()
        await self._part.close()
        if leave.flush is not None and (line := await self._group.flush_state(leave.flush)):
            self._say(line)
            self._note(Note(name="state.kept", message=line, attempt=leave.flush.ended))
        await self._group.shut_down()
        await self._part.member.close()
        await self._tasks.cancel()
        await self._processes.call(self._guard.dismiss)
        await self._disk.close(DISK_DRAINS_WITHIN_S)
        await self._processes.close(DISK_DRAINS_WITHIN_S)
