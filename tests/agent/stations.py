"""Agents of one allocation in one event loop: real sockets, run directory, heads and members; no worker processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

from hpc_elastic.agent.drivers.head_side import HeadSide
from hpc_elastic.agent.drivers.head_start import HeadStart
from hpc_elastic.agent.drivers.local_member import LocalMember, MemberOutputs
from hpc_elastic.agent.net.listener import Listener
from hpc_elastic.agent.net.transport import Connection, Receiver, connection_factory
from hpc_elastic.agent.node.network import listen_on_first
from hpc_elastic.agent.records.journal import Journal
from hpc_elastic.agent.records.telemetry import Telemetry
from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.agent.system.signals import AgentSignals
from hpc_elastic.agent.system.tasks import Tasks
from hpc_elastic.agent.workers.group import LocalWorkers
from hpc_elastic.agent.workers.spawn import WorkerOrder
from hpc_elastic.membership.actions import Leave
from hpc_elastic.membership.authentication import Scope, Side
from hpc_elastic.membership.member import Member
from hpc_elastic.membership.messages import Assign, StopManner
from hpc_elastic.membership.ports import port_sequence
from hpc_elastic.membership.timing import Timing
from hpc_elastic.plan.launch_plan import ElasticPlan
from hpc_elastic.plan.roles import NodesPlan
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import Endpoint
from hpc_elastic.rundir.state_records import HeldState
from hpc_elastic.scheduler.allocation import Allocation
from tests.agent.answers import Answers
from tests.membership.script import a_join
from tests.plans import make_run_plan

JOB = "local-7-7"
NEVER = float("inf")


class FakeWorkers:
    """Stands in for LocalWorkers: workers that start and end at once."""

    started = 0.0
    store_port = 1
    start_method = "spawn"

    def __init__(self) -> None:
        self.attempt: int | None = None  # what runs
        self._ranks: tuple[int, ...] = ()
        self.told: list[str] = []
        self.hurries = self.looks = 0

    async def initialize_workers(self, assign: Assign) -> None:
        self.told.append(f"start {assign.attempt}")
        self.attempt = assign.attempt
        self._ranks = tuple(range(assign.first_rank, assign.first_rank + assign.workers))

    async def stop_workers(
        self, manner: StopManner, *, is_terminated: bool, takes_stacks: bool = False
    ) -> tuple[int, ...]:
        assert not is_terminated
        self.told.append(f"{manner.value} {self.attempt}")
        self.attempt = None
        return ()

    def hurry(self, *, spares_savers: bool = False) -> None:
        """Only count: these workers end at once anyway."""
        self.hurries += 1

    async def held_states(self, *, is_quick: bool = False) -> tuple[HeldState, ...]:
        self.looks += 1
        return ()

    def pids(self) -> dict[str, int]:
        return dict.fromkeys(map(str, self._ranks), os.getpid())

    def orders(self) -> list[WorkerOrder]:
        return []

    def ended_by_stop(self) -> list[WorkerOrder]:
        return []


class Station:
    """One agent, with its listener, head side and member."""

    def __init__(self, scene: Scene, number: int) -> None:
        self.number = number
        self.scene = scene
        self.place = Allocation(
            job_id=JOB,
            restart_count=0,
            array_task=None,
            node_id=number,
            nodes=tuple(f"local{each}" for each in range(scene.count)),
            is_local=True,
        )
        self.workers = FakeWorkers()
        self.said: list[str] = []
        self.left: Leave | None = None
        self.connections: list[Connection] = []
        plan, loop = scene.plan, asyncio.get_running_loop()
        self.disk = BackgroundThread("disk", loop)
        self.journal = Journal(scene.layout, plan, self.place, questions=Answers(is_over=lambda _: True))
        factory = connection_factory(b"s" * 32, Scope(run=plan.run, job_id=JOB, restart_count=0))

        def make(side: Side, receiver: Receiver) -> Connection:
            connection = factory(side, receiver)
            self.connections.append(connection)
            return connection

        ports = port_sequence(str(scene.layout.root), JOB, (20000, 32000))
        listener = listen_on_first(self.place.local_address(number), ports)
        self.own = Endpoint(address=self.place.local_address(number), port=listener.getsockname()[1])
        telemetry = Telemetry(plan, self.place, journal=self.journal, disk=self.disk, say=self.said.append)
        join = replace(a_join(number, node=self.place.node, workers=1), agent=self.own)
        self.member = LocalMember(
            Member(join, run=plan.run, timing=Timing(lease_s=plan.elastic.lease_s)),
            plan=plan,
            place=self.place,
            journal=self.journal,
            disk=self.disk,
            telemetry=telemetry,
            outputs=MemberOutputs(
                tell=lambda message: self.heads.tell(message),
                discover_head=lambda lost: self.heads.discover_head(lost),
                leave=self._leaves,
                moved=lambda: None,
                guard_deadline=lambda: NEVER,
                runs_until=lambda: NEVER,
                say=lambda text, _: self.said.append(text),
            ),
        )
        self.member.serve(cast("LocalWorkers", self.workers), cast("AgentSignals", None))
        self.heads = HeadSide(
            plan,
            self.place,
            member=self.member,
            own=self.own,
            ports=ports,
            journal=self.journal,
            disk=self.disk,
            head_start=HeadStart(plan, self.place, journal=self.journal, disk=self.disk, telemetry=telemetry),
            make=make,
            moved=lambda: None,
            say=lambda text, _: self.said.append(text),
        )
        self.door = Listener(listener, make, self.heads, most=100, say=self.said.append)
        self.tasks = Tasks()

    def start(self) -> None:
        self.tasks.run(self.heads.find())

    def _leaves(self, leave: Leave) -> None:
        self.left = leave

    @property
    def is_head(self) -> bool:
        return self.heads._head is not None

    async def die(self) -> None:
        """End as a process that is killed: the kernel closes its sockets, and its workers are dead."""
        self.workers.attempt = None
        self.heads._connection = None  # nothing that its end would cause happens any more
        if self.heads._head is not None:
            await self.heads._head.close()
        for connection in self.connections:
            if connection._transport is not None:
                connection._transport.abort()
        await self._end()

    async def leave(self) -> None:
        """Leave in order, as the supervisor does."""
        await self.heads.close()
        await self._end()

    async def _end(self) -> None:
        successor, head = self.heads._successor, self.heads._head
        await self.door.close()
        await self.tasks.cancel()
        await self.heads._tasks.cancel()
        if successor is not None:
            await successor.close()
        if head is not None:
            await head.close()
        await self.member.close()
        await self.disk.close(5)


class Scene:
    """The agents of one allocation."""

    def __init__(self, root: Path, count: int, *, least: int = 1, lease_s: float = 20.0) -> None:
        self.layout = RunLayout(root)
        self.count = count
        elastic = ElasticPlan(
            join_timeout_s=60, join_retries=0, lease_s=lease_s, exit_timeout_s=None, rejoin="at_restart"
        )
        self.plan = replace(make_run_plan(root, nodes=NodesPlan(min=least, max=count)), elastic=elastic)
        self.stations = [Station(self, number) for number in range(count)]
        self.dead: set[int] = set()

    def __getitem__(self, number: int) -> Station:
        return self.stations[number]

    def start(self) -> None:
        for station in self.stations:
            station.start()

    async def kill(self, number: int) -> None:
        self.dead.add(number)
        await self.stations[number].die()

    async def until(self, condition: Callable[[], bool], what: str, within_s: float = 30) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}\n{self.story()}"
            await asyncio.sleep(0.005)

    async def until_at_work(self, attempt: int, *numbers: int) -> None:
        """Waits until these nodes, and no others, work on this attempt."""
        at_work = dict.fromkeys(numbers, attempt)
        await self.until(lambda: self.at_work() == at_work, f"attempt {attempt} on {numbers}")

    def at_work(self) -> dict[int, int]:
        stations = [station for station in self.stations if station.number not in self.dead]
        return {each.number: each.workers.attempt for each in stations if each.workers.attempt is not None}

    def story(self) -> str:
        lines = [f"{each.place.node}: {each.workers.told} {each.left} {each.said}" for each in self.stations]
        return "\n".join([f"attempts {sorted(os.listdir(self.layout.attempts))}", *lines])

    async def close(self) -> None:
        for station in self.stations:
            if station.number not in self.dead:
                with contextlib.suppress(asyncio.CancelledError):
                    await station.die()


def play(
    scene: Callable[[Scene], Awaitable[None]], root: Path, count: int, *, least: int = 1, lease_s: float = 20.0
) -> None:
    """Plays a scene; an exception that would end an agent fails it."""

    async def main() -> None:
        troubles: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context))
        made = Scene(root, count, least=least, lease_s=lease_s)
        try:
            await asyncio.wait_for(scene(made), 60)
        finally:
            await made.close()
        assert not troubles, troubles

    asyncio.run(main())
