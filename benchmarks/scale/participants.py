"""Some agents of an allocation in one process of `head_loss_scale`: the shipped drivers, real sockets, no workers.

They share the process's event loop and its threads for the disk; all else is each agent's own.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection as Pipe

from hpc_elastic.agent.drivers.participation import Participation, Surroundings
from hpc_elastic.agent.net.listener import allow_connections
from hpc_elastic.agent.net.transport import Connection, Receiver, connection_factory
from hpc_elastic.agent.node.network import listen_on_first
from hpc_elastic.agent.records.journal import Journal
from hpc_elastic.agent.records.telemetry import Telemetry
from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.agent.system.event_loop import run
from hpc_elastic.agent.workers.spawn import WorkerOrder
from hpc_elastic.membership.actions import Leave, Level
from hpc_elastic.membership.authentication import Scope, Side
from hpc_elastic.membership.messages import Assign, StopManner
from hpc_elastic.membership.notices import NoticeCounts, NoticeGiven
from hpc_elastic.membership.ports import port_sequence
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.plan.roles import NodesPlan
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import Endpoint
from hpc_elastic.rundir.state_records import HeldState
from hpc_elastic.scheduler.allocation import Allocation
from tests.agent.answers import Answers
from tests.membership.script import a_join, a_restart_plan
from tests.plans import make_plan

SECRET = b"s" * 32
JOB = "42"
DISK_THREADS = 8
PULSE_S = 0.01
NEVER = float("inf")


@dataclass(frozen=True, kw_only=True)
class Allotment:
    """An allocation, and which of its agents one process has."""

    nodes: int
    lease_s: float
    run_dir: str
    numbers: Sequence[int]

    @property
    def names(self) -> tuple[str, ...]:
        """The nodes' names, which are loopback addresses: no name server knows 4,096 nodes of one machine."""
        return tuple(f"127.{1 + number // 65536}.{number // 256 % 256}.{number % 256}" for number in range(self.nodes))

    def plan(self) -> LaunchPlan:
        """Return the run's plan, by which half the nodes are enough."""
        return make_plan(
            elastic=replace(make_plan().elastic, lease_s=self.lease_s),
            run="run",
            run_dir=self.run_dir,
            nodes=NodesPlan(min=max(1, self.nodes // 2), max=self.nodes),
            workdir="/",
            workers_per_node=1,
            restart=a_restart_plan(10**6, no_progress_limit=10**6, max_node_losses=10**6),
        )


class PretendedWorkers:
    """Workers that start and end at once."""

    started = 0.0
    store_port = 1
    start_method = "spawn"

    def __init__(self) -> None:
        self.attempt = 0  # the one at work
        self._rank = 0

    async def initialize_workers(self, assign: Assign) -> None:
        self.attempt, self._rank = assign.attempt, assign.first_rank

    async def stop_workers(
        self,
        manner: StopManner,  # noqa: ARG002
        *,
        is_terminated: bool,  # noqa: ARG002
        takes_stacks: bool = False,  # noqa: ARG002
    ) -> tuple[int, ...]:
        self.attempt = 0
        return ()

    def hurry(self, *, spares_savers: bool = False) -> None:
        """They end at once anyway."""

    async def hold_for_notice(self, attempt: int, notice: NoticeGiven) -> NoticeCounts:  # noqa: ARG002
        return NoticeCounts(polls=0, beats=0)

    def name_notice(self, attempt: int, first: NoticeCounts) -> None:
        """They ask for no notice."""

    async def held_states(self, *, is_quick: bool = False) -> tuple[HeldState, ...]:  # noqa: ARG002
        return ()

    def pids(self) -> dict[str, int]:
        return {str(self._rank): os.getpid()}

    def ended_by_stop(self) -> list[WorkerOrder]:
        return []

    def orders(self) -> list[WorkerOrder]:
        return []

    def order_of(self, local_rank: int) -> tuple[WorkerOrder, int]:
        raise AssertionError(f"worker {local_rank} has not failed")

    def failing_word(self, _local_rank: int) -> None:
        return None


class NoSignals:
    """Nobody sends a TERM."""

    async def is_term_here(self) -> bool:
        return False


class Participant:
    """One agent."""

    def __init__(self, allotment: Allotment, plan: LaunchPlan, number: int, disk: BackgroundThread) -> None:
        place = Allocation(
            job_id=JOB, restart_count=0, array_task=None, node_id=number, nodes=allotment.names, is_local=False
        )
        self.workers = PretendedWorkers()
        self.dials = 0
        self.left: Leave | None = None
        self.said: list[str] = []
        factory = connection_factory(SECRET, Scope(run=plan.run, job_id=JOB, restart_count=0))

        def make(side: Side, receiver: Receiver) -> Connection:
            self.dials += side is Side.DIALLING
            return factory(side, receiver)

        journal = Journal(RunLayout(plan.run_dir), plan, place, questions=Answers())
        telemetry = Telemetry(plan, place, journal=journal, disk=disk, say=self._say)
        ports = port_sequence(plan.run, JOB, plan.network.port_range)
        listener = listen_on_first(place.node, ports)
        own = Endpoint(address=place.node, port=listener.getsockname()[1])
        self.part = Participation(
            plan,
            place,
            join=replace(a_join(number, node=place.node, workers=1), agent=own),
            listener=listener,
            ports=ports,
            around=Surroundings(
                journal=journal,
                disk=disk,
                telemetry=telemetry,
                make=make,
                leave=self._leaves,
                moved=lambda: None,
                guard_deadline=lambda: NEVER,
                say=self._say,
            ),
        )
        self.part.serve(self.workers, NoSignals())

    def _leaves(self, leave: Leave) -> None:
        self.left = leave

    def _say(self, text: str, level: Level = "info") -> None:
        if level != "debug":
            self.said.append(text)


def host(pipe: Pipe, allotment: Allotment) -> None:
    """Says when its agents listen, lets them search at `start`, then answers `usage`; ends when it is killed."""
    allow_connections(3 * allotment.nodes)
    run(_Host(pipe, allotment).serve())


class _Host:
    def __init__(self, pipe: Pipe, allotment: Allotment) -> None:
        self._pipe = pipe
        self._allotment = allotment
        self._longest_block_s = 0.0

    async def serve(self) -> None:
        loop, plan = asyncio.get_running_loop(), self._allotment.plan()
        disks = itertools.cycle([BackgroundThread("disk", loop) for _ in range(DISK_THREADS)])
        agents = [Participant(self._allotment, plan, number, next(disks)) for number in self._allotment.numbers]
        pulse = loop.create_task(self._watch_loop())
        searches = []
        self._pipe.send(True)
        while True:
            asked = await loop.run_in_executor(None, self._pipe.recv)
            if asked == "start":
                searches = [loop.create_task(agent.part.heads.find()) for agent in agents]
            self._pipe.send(
                {
                    "attempts": [agent.workers.attempt for agent in agents],
                    "dials": [agent.dials for agent in agents],
                    "left": [f"{agent.left}: {agent.said[-3:]}" for agent in agents if agent.left is not None],
                    "read_bytes": _bytes_read(),
                    "longest_block_s": self._longest_block_s,
                    "cpu_s": time.process_time(),
                    "failed": [str(search.exception()) for search in searches if search.done() and search.exception()],
                }
            )
            self._longest_block_s = 0.0
            assert not pulse.done()

    async def _watch_loop(self) -> None:
        """Measures for how long the loop does not come back to this."""
        while True:
            before = time.monotonic()
            await asyncio.sleep(PULSE_S)
            self._longest_block_s = max(self._longest_block_s, time.monotonic() - before - PULSE_S)


def _bytes_read() -> int:
    """Return the bytes that this process has read with read(2) and the like; what sockets receive is not among them."""
    with open(f"/proc/{os.getpid()}/io") as file:
        return int(file.readline().split()[1])
