"""The head's process of `rendezvous_scale`: the real Coordinator, Head, Journal and Telemetry, and its own member."""

from __future__ import annotations

import asyncio
import cProfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe

import psutil

from benchmarks.scale.setting import ADDRESS, SCOPE, SECRET, Setting, carry_out
from hpc_elastic.agent.drivers.coordinator import Coordinator
from hpc_elastic.agent.drivers.head_outputs import HeadOutputs
from hpc_elastic.agent.drivers.head_start import HeadStart
from hpc_elastic.agent.net.listener import Listener, most_unauthenticated
from hpc_elastic.agent.net.transport import connection_factory
from hpc_elastic.agent.node.network import listen
from hpc_elastic.agent.records.journal import Journal
from hpc_elastic.agent.records.telemetry import Telemetry
from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.agent.system.event_loop import run
from hpc_elastic.membership.actions import Level, Note
from hpc_elastic.membership.member import Member
from hpc_elastic.membership.messages import Failed, Message
from hpc_elastic.membership.timing import Timing
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import AttemptClaim, World
from hpc_elastic.scheduler.allocation import Allocation
from tests.agent.answers import Answers
from tests.membership.script import a_failure

BOUND_S = 60.0


def run_head(pipe: Pipe, setting: Setting, profile: str | None) -> None:
    """Sends its port, then answers `wait`, `round`, `usage` and `leave`; a profile goes to that file."""
    if profile is None:
        run(HeadProcess(setting).serve(pipe))
    else:
        profiler = cProfile.Profile()
        profiler.runcall(run, HeadProcess(setting).serve(pipe))
        profiler.dump_stats(profile)


class WatchedJournal(Journal):
    """A journal that tells when an attempt was claimed and when it has started everywhere."""

    on_started: Callable[[float], object]
    claiming_s: tuple[float, float] = (0.0, 0.0)

    def claim_attempt(self, wanted: AttemptClaim, world: World) -> tuple[bool, str]:
        began = time.monotonic()
        claimed = super().claim_attempt(wanted, world)
        self.claiming_s = (began, time.monotonic())
        return claimed

    def note(self, note: Note, time_ns: int) -> None:
        if note.name == "attempt.started":
            self.on_started(time.monotonic())
        super().note(note, time_ns)

    def say(self, text: str, level: Level = "info") -> None:
        """Not on this benchmark's output."""


class HeadProcess:
    """The agent of node 0 without what is not the head's: no workers, no guard, no way for others to find it."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._own = setting.join(0)
        self._member = Member(self._own, run="run", timing=Timing(lease_s=setting.lease_s))
        self._coordinator: Coordinator | None = None
        self._deadline = 0.0

    async def serve(self, pipe: Pipe) -> None:
        loop, plan = asyncio.get_running_loop(), self._setting.plan()
        place = Allocation(
            job_id="42", restart_count=0, array_task=None, node_id=0, nodes=self._setting.names, is_local=False
        )
        disk = BackgroundThread("disk", loop)
        journal = WatchedJournal(RunLayout(plan.run_dir), plan, place, questions=Answers())
        started: asyncio.Queue[float] = asyncio.Queue()
        journal.on_started = lambda at: loop.call_soon_threadsafe(started.put_nowait, at)
        await disk.call(lambda: journal.claim_allocation(self._own.agent))
        telemetry = Telemetry(plan, place, journal=journal, disk=disk, say=print)
        start = HeadStart(plan, place, journal=journal, disk=disk, telemetry=telemetry)
        outputs = HeadOutputs(to_own_member=self._received, moved=self._moved)
        coordinator = self._coordinator = start.make(self._own, await start.read(), None, outputs, may_yield=True)
        listener, most = listen(ADDRESS, 0), most_unauthenticated(self._setting.nodes)
        port = listener.getsockname()[1]
        door = Listener(listener, connection_factory(SECRET, SCOPE), coordinator, most=most, say=print)
        alone = psutil.Process().memory_info().rss
        pipe.send(port)
        for told in carry_out(self._member, self._member.connected(time.monotonic(), is_joined=False)):
            coordinator.received_from_own(told)
        while (asked := await loop.run_in_executor(None, pipe.recv)) != "leave":
            if asked == "wait":
                await asyncio.wait_for(started.get(), BOUND_S)
                await disk.call(lambda: None)
                pipe.send(True)
            elif asked == "round":
                pipe.send(await self._round(coordinator, journal, started))
            else:
                resident = psutil.Process().memory_info().rss
                pipe.send({"cpu_s": time.process_time(), "resident": resident, "alone": alone})
        await coordinator.close()
        await door.close()
        pipe.send(True)

    def _received(self, message: Message) -> None:
        assert self._coordinator is not None
        for told in carry_out(self._member, self._member.received(message, time.monotonic())):
            self._coordinator.received_from_own(told)

    def _moved(self) -> None:
        """What an agent does to know its guard's deadline."""
        if self._coordinator is not None:
            self._deadline = min(self._member.fence_deadline(), self._coordinator.fence_deadline())

    async def _round(
        self, coordinator: Coordinator, journal: WatchedJournal, started: asyncio.Queue[float]
    ) -> dict[str, float]:
        """Seconds from a worker's failure on this node until every node has started the next attempt, and its parts."""
        attempt = self._member.attempt
        cpu_s, began = time.process_time(), time.monotonic()
        coordinator.received_from_own(Failed(attempt=attempt, failure=a_failure(attempt=attempt, node=self._own.node)))
        ended = await asyncio.wait_for(started.get(), BOUND_S)
        claiming, claimed = journal.claiming_s
        parts = {"stop_s": claiming - began, "claim_s": claimed - claiming, "start_s": ended - claimed}
        return {"round_s": ended - began, **parts, "head_cpu_s": time.process_time() - cpu_s}
