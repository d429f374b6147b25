"""An agent's part that starts, guards and fences workers: what a trial of the guard breaks.

Where it fences it is a member as shipped, of a head that is silent once it has given out the attempt; else no one ends
the workers but the guard, as where the agent's event loop stands still.

The agent's process is a fork of the one that does the trials. The program's own lines are counted while it starts its
workers, in all threads, so that it can be frozen or killed before any of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, cast

import hpc_elastic
from hpc_elastic.agent.drivers.local_member import LocalMember, MemberOutputs
from hpc_elastic.agent.guard.link import GuardLink
from hpc_elastic.agent.node.environment import NodeFacts
from hpc_elastic.agent.node.preparation import NodeReport
from hpc_elastic.agent.records.journal import Journal
from hpc_elastic.agent.records.telemetry import Telemetry
from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.agent.system.event_loop import run
from hpc_elastic.agent.system.processes import become_subreaper
from hpc_elastic.agent.workers.group import LocalWorkers
from hpc_elastic.agent.workers.node_workers import TermWatch
from hpc_elastic.agent.workers.spawn import StartFailedError
from hpc_elastic.agent.workers.worker_start import WorkerStart
from hpc_elastic.clock import now
from hpc_elastic.deadline import Deadline
from hpc_elastic.membership.member import Member
from hpc_elastic.membership.messages import Assign, Welcome
from hpc_elastic.membership.timing import AGENT, Timing
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.plan.roles import EntrypointPlan
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.scheduler.allocation import Allocation
from tests.agent.answers import Answers
from tests.membership.script import a_join, an_assign
from tests.plans import make_run_plan
from tests.soak import beater

PACKAGE = Path(hpc_elastic.__file__).parent
NODE = "local0"
# The start of a worker is code of these, up to the moment at which the new process exists.
_STEPS = (str(PACKAGE / "agent"), str(PACKAGE / "deadline.py"), "/subprocess.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What one agent does.

    `deadline_s`: from the beginning of its workers' start until the deadline. `step`: before which line of the start
    it sends `signal` to itself; with 0 it does not. `kills_guard_s`: from the same beginning until its guard is
    killed. `fences`: whether it is a member, which ends its workers when its lease is over.
    """

    run_dir: Path
    start: str
    deadline_s: float
    step: int = 0
    signal: int = signal.SIGSTOP
    kills_guard_s: float | None = None
    fences: bool = False


class StepCounter:
    """Counts the lines of the start, and calls `reached` before the line with this number."""

    def __init__(self, number: int, reached: Callable[[], None]) -> None:
        self.count = 0
        self._number = number
        self._reached = reached
        self._counting = threading.Lock()

    def reach(self) -> None:
        """Calls `reached` if the start was over before so many lines."""
        with self._counting:
            is_it, self._number = self.count < self._number, 0
        if is_it:
            self._reached()

    def install(self) -> None:
        """Begins to count, in this thread and in those that start from now on."""
        threading.settrace(self._call)
        sys.settrace(self._call)

    def _call(self, frame: FrameType, event: str, _: Any) -> Any:
        return self._line if any(part in frame.f_code.co_filename for part in _STEPS) else None

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            with self._counting:
                self.count += 1
                is_it = self.count == self._number
            if is_it:
                self._reached()
        return self._line


def be_agent(orders: Orders, deadline: Deadline, tell: Callable[[str], None]) -> None:
    """Starts two workers as an agent does, and waits; does not return before it is killed.

    Args:
        orders: what to do and what to suffer.
        deadline: the time until which the workers may run, shared with who looks on.
        tell: is called with `guard`, its process id and the deadline, `frozen` before the agent stops itself,
            `started N` when the start was over after N lines, and `searches` when no worker is left after a fence.
    """

    def reached() -> None:
        tell("frozen")
        os.kill(os.getpid(), orders.signal)

    become_subreaper()  # as an agent is
    run(_Agent(orders, deadline, tell, StepCounter(orders.step, reached)).run())


class _Agent:
    def __init__(self, orders: Orders, deadline: Deadline, tell: Callable[[str], None], steps: StepCounter) -> None:
        self._orders = orders
        self._deadline = deadline
        self._tell = tell
        self._steps = steps

    async def run(self) -> None:
        loop, orders = asyncio.get_running_loop(), self._orders
        processes = BackgroundThread("processes", loop)
        plan = make_run_plan(
            orders.run_dir,
            workers_per_node=2,
            entrypoint=EntrypointPlan(kind="script", target=beater.__file__, args=(str(orders.run_dir / "beats"),)),
            package_dir=str(PACKAGE),
            workdir=str(orders.run_dir),
            env={"PYTHONPATH": str(PACKAGE.parent)},
            start=orders.start,
        )
        place = Allocation(job_id="local-1", restart_count=0, array_task=None, node_id=0, nodes=(NODE,), is_local=True)
        start = WorkerStart(plan, place, os.environ, thread=processes, deadline=self._deadline, say=lambda *_: None)
        await start.start()
        guard: GuardLink = await processes.call(
            lambda: GuardLink(str(PACKAGE), run_dir=str(orders.run_dir), node=NODE, deadline=self._deadline)
        )
        keeping = loop.create_task(guard.keep(processes, lambda _: None))
        workers = _CountedStart(
            plan,
            place,
            NodeReport(
                address="127.0.0.1",
                facts=NodeFacts(node=NODE, role=plan.roles[0], gloo_interface="lo"),
                versions={},
                problem=None,
            ),
            thread=processes,
            start=start,
            guard=guard.pids,
            say=lambda _: None,
            on_exit=lambda attempt, rank, code, stopped: self._exited(attempt, rank, code, is_after_stop=stopped),
            on_broken=lambda _: None,
            may_start=lambda: not self._deadline.has_passed,
        )
        workers.ended = partial(self._ended, processes)
        await start.ready()
        (guard_pid,) = guard.pids()
        over = now() + orders.deadline_s
        guard.set_deadline(over)
        self._tell(f"guard {guard_pid} {over!r}")
        if orders.kills_guard_s is not None:
            loop.call_later(orders.kills_guard_s, os.kill, guard_pid, signal.SIGKILL)
        assign = an_assign(attempt=1, nodes=1, group_rank=0)
        if orders.fences:
            self._member = _make_member(plan, place, guard, self._deadline, orders.deadline_s, self._tell)
            self._member.serve(workers, cast("TermWatch", None))
            asked = over - AGENT.guard_s - _timing(orders.deadline_s).patience_s
            self._member.connected(is_joined=True, asked=asked)
            self._member.received(Welcome(allocation=1, head="local1"))
        await processes.call(self._steps.install)
        self._steps.install()
        if self._member is not None:
            self._member.received(assign)
        else:
            with contextlib.suppress(StartFailedError):
                await workers.initialize_workers(assign)
        await keeping

    _member: LocalMember | None = None

    def _exited(self, attempt: int, local_rank: int, exitcode: int, *, is_after_stop: bool) -> None:
        if self._member is not None:
            self._member.worker_exited(attempt, local_rank, exitcode, is_after_stop=is_after_stop)

    async def _ended(self, processes: BackgroundThread) -> None:
        sys.settrace(None)
        await processes.call(lambda: sys.settrace(None))  # a traced search of /proc takes five times as long
        self._steps.reach()
        self._tell(f"started {self._steps.count}")


class _CountedStart(LocalWorkers):
    """Workers of whose start every line is counted."""

    ended: Callable[[], Awaitable[None]]

    async def initialize_workers(self, assign: Assign) -> None:
        try:
            await super().initialize_workers(assign)
        finally:
            await self.ended()


def _timing(deadline_s: float) -> Timing:
    """The lease of a run, most of which may be over when the workers begin."""
    return Timing(lease_s=max(3.0, 2 * deadline_s))


def _make_member(
    plan: LaunchPlan,
    place: Allocation,
    guard: GuardLink,
    deadline: Deadline,
    deadline_s: float,
    tell: Callable[[str], None],
) -> LocalMember:
    """A member as an agent has it, of a head that hears nothing and says nothing."""
    disk = BackgroundThread("disk", asyncio.get_running_loop())
    journal = Journal(RunLayout(plan.run_dir), plan, place, questions=Answers())
    member = LocalMember(
        Member(a_join(0, node=NODE), run=plan.run, timing=_timing(deadline_s)),
        plan=plan,
        place=place,
        journal=journal,
        disk=disk,
        telemetry=Telemetry(plan, place, journal=journal, disk=disk, say=lambda _: None),
        outputs=MemberOutputs(
            tell=lambda _: None,
            discover_head=lambda _: tell("searches"),
            leave=lambda _: None,
            moved=lambda: guard.set_deadline(member.fence_deadline() + AGENT.guard_s),
            guard_deadline=lambda: deadline.value,
            runs_until=lambda: deadline.value - AGENT.guard_s,
            say=lambda *_: None,
        ),
    )
    return member
