"""A simulated node, and its agent: the part in membership that ships, put together as in `agent.supervisor`."""

from __future__ import annotations

import asyncio
import random
import re
import signal
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, cast

from hpc_elastic.agent.departure import Departure
from hpc_elastic.agent.drivers.job_clock import TimeLeft
from hpc_elastic.agent.drivers.participation import Participation, Surroundings
from hpc_elastic.agent.net.transport import ConnectionFactory
from hpc_elastic.agent.records.telemetry import Telemetry
from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.agent.system.signals import AgentSignals
from hpc_elastic.agent.system.tasks import Tasks
from hpc_elastic.agent.workers.circumstances import Circumstances
from hpc_elastic.agent.workers.node_workers import NodeWorkers
from hpc_elastic.errors import ExitCode, FileSystemError, HpcElasticError
from hpc_elastic.membership.actions import (
    Action,
    DiscoverHead,
    Leave,
    Level,
    SendToHead,
    StartWorkers,
    StopWorkers,
)
from hpc_elastic.membership.job_end import ASKING_NODES
from hpc_elastic.membership.member import Member
from hpc_elastic.membership.messages import Beat, Join, Message, Refused, Welcome
from hpc_elastic.membership.messages import End as RunEnd
from hpc_elastic.membership.timing import DRIFT
from hpc_elastic.rundir.records import Endpoint, RunResultRecord
from tests.simulation.clock import NEVER, MachineClock
from tests.simulation.file_system import DiskThread
from tests.simulation.guard import Guard
from tests.simulation.network import Listener, SimulatedConnection, Socket
from tests.simulation.process import ANSWERS_S, Process
from tests.simulation.rules.asked_saves import NodeSaves
from tests.simulation.rules.circumstances import NodeCircumstances
from tests.simulation.rules.copies import KEEPER_PORTS
from tests.simulation.rules.invariants import require
from tests.simulation.wiring import PYTHONS, VERSIONS, Headquarters, SimulatedJournal
from tests.simulation.workers import Workers

if TYPE_CHECKING:
    from tests.simulation.world import SimulatedRun

EXACT_S = 1e-6  # sums of floats
T = TypeVar("T")
CLOCKS_DIFFER_OF_UP_TO = 8  # nodes


class Probed(asyncio.Transport):
    """A connection on which nothing is said."""

    def __init__(self, socket: Socket) -> None:
        super().__init__()
        self._socket = socket

    def close(self) -> None:
        self._socket.close()

    def is_closing(self) -> bool:
        return not self._socket.is_open


class AgentProcess(Process):
    """The agent's event loop, on the simulated network."""

    def __init__(self, agent: Agent, own: MachineClock) -> None:
        super().__init__(agent.run.clock, own, agent.dice, agent.crashed)
        self.agent = agent
        self.recent_turns = agent.run.contracts.no_turns()
        self._foretold = agent.run.foretold

    async def create_connection(
        self, protocol_factory: Callable[[], SimulatedConnection], host: str, port: int
    ) -> tuple[Any, Any]:
        socket = await self.agent.run.network.connect(self.agent, host, port)
        return self._made(protocol_factory, socket)

    async def connect_accepted_socket(
        self, protocol_factory: Callable[[], SimulatedConnection], sock: Socket
    ) -> tuple[Any, Any]:
        return self._made(protocol_factory, sock)

    def run_in_executor(
        self, executor: None, func: Callable[..., T], *args: Any, within_s: float = ANSWERS_S
    ) -> asyncio.Future[T]:
        if getattr(func, "__name__", "") != "outlook":
            return super().run_in_executor(executor, func, *args)
        run, asked_at = self.agent.run, self.agent.run.clock.now
        run.terms.asks(self.agent)

        def answer() -> T:
            outlook = func(*args)
            run.terms.answered(asked_at, is_said=outlook is not None)
            return outlook

        within_s = self.agent.answer_dice.choice(run.scenario.answers_s)
        return super().run_in_executor(executor, answer, within_s=within_s)

    turns = 0

    def takes_turn(self) -> None:
        self.turns += 1
        recent, now = self.recent_turns, self._clock.now
        recent.append(now)
        if recent[0] >= now - 1.0:
            self.agent.run.contracts.takes_many_turns(self.agent)
        if self._foretold.is_played:
            self._foretold.turns(self.agent)

    def _made(self, make: Callable[[], SimulatedConnection], socket: Socket) -> tuple[Any, Any]:
        connection: Any = make()
        if isinstance(connection, asyncio.StreamReaderProtocol):  # only whether there is an answer is asked
            return Probed(socket), connection
        connection.made(socket)
        return connection, connection

    def add_reader(self, fd: Listener, callback: Callable[..., object], *args: Any) -> None:
        fd.watch(callback)

    def remove_reader(self, fd: Listener) -> bool:
        fd.watch(None)
        return True


class SimulatedTelemetry:
    """Shows the rules what the member asks for."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def saw(self, action: Action) -> None:
        agent, run = self._agent, self._agent.run
        if isinstance(action, SendToHead) and isinstance(action.message, Beat):
            run.conduct.beats(agent)
            run.reports.beats(agent, action.message)
            return
        run.conduct.acts(agent, action)
        if isinstance(action, SendToHead):
            run.endings.says(agent, action.message)
            run.reports.says(agent, action.message)
            run.noted.reports(agent, action.message)
            run.bookkeeping.says(agent, action.message)
            return
        run.trace(agent, action)
        if isinstance(action, StartWorkers):
            run.rules.assigned(agent, action.assign)
            run.reports.starts(agent)
            run.leftovers.starts(agent, agent.member)
        elif isinstance(action, StopWorkers):
            run.rules.stops(agent, action)
            run.reports.stops(agent, action)
            run.late_ranks.stops(agent, action)
        elif isinstance(action, DiscoverHead):
            run.rules.searches(agent)
            run.conduct.searches(agent)
            run.fences.searches(agent)
            agent.parted_at = agent.searched_at = run.clock.now
        elif isinstance(action, Leave):
            if action.flush is not None:
                agent.workers.states.flush(action.flush)
            run.job_ends.member_leaves(agent, action)
            run.unheard.leaves(agent, action)
            due = agent.member.next_tick()
            require(due == NEVER, f"{agent.name} has left, and its member wants to be called at {due:.3f}")
            agent.left(action.exit_code, action.cause)

    def measuring(self, step: str) -> SimulatedTelemetry:
        return self

    def __enter__(self) -> None:
        """A step of the head begins."""

    def __exit__(self, *_: object) -> None:
        """It is over."""

    def run_ended(self, result: RunResultRecord) -> None:
        """Of the head."""


class Agent:
    """The agent of one node, and its node."""

    process: AgentProcess
    part: Participation
    guard: Guard

    def __init__(self, run: SimulatedRun, number: int, role: str, workers: int, start_number: int = 0) -> None:
        self.run = run
        self._clock = run.clock
        self.number = number
        self.start_number = start_number  # of the job
        self.port = 1 + start_number
        self.name = f"node{number}"
        self.first_role = role
        self.is_powered = True
        self.is_running = False
        self.started_at = self.died_at = NEVER
        self.exit_code: int | None = None
        self.left_at = self.gone_at = NEVER
        self.unrecorded: set[int] = set()  # attempts whose record it says that it could not write in half a minute
        self.ends_job = self.was_killed = False
        self.asks_at_start = number in ASKING_NODES  # whether it could end the job
        self.can_end_job = self.asks_at_start and (number != 1 or run.scenario.seed % 2 == 0)
        # Unless no name server tells who has the address of srun: then the agent beside it alone says so, as it joins.
        self.knows_launch_node = self.asks_at_start and run.scenario.seed % 4 != 3
        self.switch = f"leaf{number // 2}"
        self.problem: str | None = None
        self.is_examined = any(fault.what == "unhealthy" for fault in run.scenario.faults)
        self.unhealthy: list[tuple[float, float]] = []  # from when, until when
        self.examined_at: list[float] = []
        self.found_at: float | None = None  # when its checks found that it is unhealthy, None if they did not
        self.well_since: float | None = None  # after its checks had found something
        self.was_well = False  # its checks once found nothing
        self.versions = VERSIONS | {"python": PYTHONS[number % len(PYTHONS)]}
        self.has_other_version = False  # of one of these
        self.has_wrong_secret = False  # of the run: its file is another one here
        self.is_refused = False
        self.is_told = False  # how the run ended, by the head or by the result
        self._was_leaving = False  # before it heard the latest message
        self.sockets: dict[Socket, None] = {}
        self.listener: Listener | None = None
        self.headquarters: Headquarters | None = None
        again = f"/{start_number}" if start_number else ""
        self.dice = random.Random(f"{run.scenario.seed}/{number}{again}")
        self.has_term = False  # the guard, beside the workers
        ahead_s = self.dice.choice([0.0, 0.0, -3600.0, 3600.0, 86400.0])
        drift = random.Random(f"{run.scenario.seed}/{number}/drift").choice([0.0, -DRIFT / 2, DRIFT / 2])
        self.clock = MachineClock(ahead_s, 1 + drift)
        # Of the time of day, which nothing depends on but what people are told of it, a line a node: so of few nodes.
        wall = random.Random(f"{run.scenario.seed}/{number}/wall").choice([0.0, 0.0, 0.0, 1.0, -5.0, 90.0])
        self.wall_ahead_s = wall if run.scenario.nodes <= CLOCKS_DIFFER_OF_UP_TO else 0.0
        self.process = AgentProcess(self, self.clock)
        self.guard = Guard(self)
        self.disk = DiskThread(self, run.scenario.disk_s, random.Random(f"{run.scenario.seed}/{number}/disk{again}"))
        self.circumstances = NodeCircumstances(self)
        self.workers = Workers(self)
        self.saves: NodeSaves | None = None
        self.troubled_until = 0.0
        self.contacts: dict[str, float] = {}  # by head elsewhere: when it heard it last
        self.parted_at = -1.0  # from a head, by whichever side
        self.reset_from: tuple[Agent | None, float] = (None, -1.0)  # by somebody between: which head, and when
        self.searched_at = -1.0  # for another head, at last
        self._worker_count = workers

    @cached_property
    def answer_dice(self) -> random.Random:
        """Of how long the scheduler takes to answer."""
        again = f"/{self.start_number}" if self.start_number else ""
        return random.Random(f"{self.run.scenario.seed}/{self.number}/answers{again}")

    def has_versions_of(self, other: Agent) -> bool:
        """Whether the two can be in one world."""
        return self.has_other_version == other.has_other_version

    # The process.

    @property
    def now(self) -> float:
        """By this node's own clock."""
        clock = self.clock
        return self._clock.now * clock.rate + clock.ahead_s  # `shows`, for what is asked most

    @property
    def is_paused(self) -> bool:
        return self.process.is_frozen

    @property
    def member(self) -> Member:
        return self.part.member._member

    @property
    def link(self) -> Socket | None:
        """The connection to the head, if it is elsewhere."""
        if not hasattr(self, "part"):  # it is being examined
            return None
        connection = cast("SimulatedConnection | None", self.part.heads._connection)
        return connection.socket if connection is not None else None

    @property
    def role(self) -> str:
        """The one that it was placed in, or, for a spare that has taken a place of another one, that."""
        return self.join.role if hasattr(self, "part") else self.first_role

    @property
    def join(self) -> Join:
        return self.part.member.join

    def start(self) -> None:
        self.is_running = True
        self.started_at = self.run.clock.now
        self.process.arrives(self._begin)

    def _begin(self) -> None:
        self._tasks = Tasks()
        self._departure = Departure(self.process)
        self.process.create_task(self._work())

    async def examine(self) -> str | None:
        """The health checks: `agent.health.examination`."""
        self.run.examined.examines(self)
        self.examined_at.append(self.run.clock.now)
        await asyncio.sleep(self.dice.choice([0.05, 0.3, 2.0]))
        now, run = self.run.clock.now, self.run
        if any(since <= now < until for since, until in self.unhealthy):
            self.found_at = now if self.found_at is None else self.found_at
            return "scratch: the disk is full"
        if self.found_at is not None and run.scenario.rejoin == "immediately":
            run.witness.see("joined")
        self.well_since = now if self.found_at is not None else self.well_since
        self.found_at, self.was_well = None, True
        return None

    async def _work(self) -> None:
        """As `agent.supervisor`."""
        run = self.run
        unhealthy = await self.examine() if self.is_examined else None
        join = Join(
            node=self.name,
            node_id=self.number,
            agent=Endpoint(address=self.name, port=self.port),
            store_port=self.workers.store_port,
            workers=self._worker_count,
            role=self.first_role,
            versions=self.versions,
            problem=self.problem,
            can_end_job=self.can_end_job,
            is_launch_host=self.number == 0,
            launch_node="node0" if self.knows_launch_node else "",
            unhealthy=unhealthy,
            keeper_port=self.port + KEEPER_PORTS if run.scenario.copy_s is not None else 0,
            switch=self.switch,
        )
        journal = SimulatedJournal(self, run.plan, run.place(self))
        is_timed = run.scheduler.is_played
        make = lambda side, receiver: SimulatedConnection(self, side, receiver)  # noqa: E731
        self.part = Participation(
            run.plan,
            run.place(self),
            join=join,
            listener=Listener(self),  # type: ignore[arg-type]
            ports=[self.port],
            around=Surroundings(
                journal=journal,
                disk=cast(BackgroundThread, self.disk),
                telemetry=cast(Telemetry, SimulatedTelemetry(self)),
                make=cast(ConnectionFactory, make),
                leave=self._departure.leaves,
                moved=self._moved,
                guard_deadline=lambda: self.guard.deadline,
                say=self._say,
            ),
            profile=run.scenario.profile,
            time_left=TimeLeft(run.plan, run.place(self), self.now) if is_timed else None,
        )
        signals = AgentSignals(
            self.process,
            is_local=run.scenario.is_local,
            has_got=lambda _: self.has_term,
            forget=lambda _: None,
            pass_on=lambda _: None,
            stop=self.part.member.got_signal,
            escalate=self.workers.escalate,
            say=self._say,
        )
        self.part.member.furthest_step = lambda: run.workers_step(self.workers.attempt)
        self.part.member.waiting_ranks = lambda: self.workers.waiting
        self.part.member.paused_ranks = lambda: self.workers.paused
        self.part.member.stacks_asked = lambda request: run.stacks.takes(self, request)
        self.saves = NodeSaves(self)
        self.part.member.save_asked = self.saves.received
        self.saves.answer = self.part.member.answer
        examine = self.examine if self.is_examined else None
        self.part.serve(cast(NodeWorkers, self.workers), signals, cast(Circumstances, self.circumstances), examine)
        self._tasks.run(self.part.heads.find())
        try:
            leave = await self._departure
        except HpcElasticError as error:
            self._fails(error)
            return
        await self.part.close()
        leave = self.part.completed(leave)
        await self.saves.close()
        await self.part.member.close()
        await self._tasks.cancel()
        await self.disk.close(30.0)
        try:
            self.run.conduct.goes(self)
        except AssertionError as error:
            self.run.crashes(error)
        self.run.job_ends.leaves(self, leave)
        self._stop_running()

    def _moved(self) -> None:
        deadline = self.part.guard_deadline()
        if deadline != self.guard.deadline:
            is_fence = self.part.member._fenced_by < NEVER  # a start that is under way looks at it before it goes on
            what = f"{self.name} kills its workers, and moves the time until which any may start from"
            is_so = not is_fence or deadline <= self.guard.deadline + EXACT_S
            require(is_so, f"{what} {self.guard.deadline:.2f} to {deadline:.2f} s")
            self.run.conduct.sets_deadline(self, deadline)
        self.guard.set_deadline(deadline)

    def _say(self, text: str, level: Level = "info") -> None:
        self.run.trace(self, f"says: {text}")
        self.unrecorded |= {int(attempt) for attempt in re.findall(r"record of attempt (\d+) is missing", text)}
        self.run.spent["line"] += 1
        self.run.conduct.says(self, level)
        self.run.wording.says(self.name, text)

    def crashed(self, error: BaseException) -> None:
        """Before there is anybody to handle it, or because a handler failed."""
        if self._departure is not None and isinstance(error, HpcElasticError):
            self._departure._crashed(self.process, {"exception": error})
        else:
            self.run.crashes(error)

    def _fails(self, error: HpcElasticError) -> None:
        """The agent ends with an error; its guard kills what is left."""
        if isinstance(error, FileSystemError):
            self.run.witness.see("disk")
        self.left(int(error.exit_code), error.message)
        self.workers.kill_all()
        self._stop_running()

    def left(self, exit_code: int, cause: str) -> None:
        """No worker is left; a head stays until everybody has gone."""
        self.run.trace(self, f"leaves with {exit_code}: {cause}")
        self.run.wording.says(self.name, cause)
        self.run.rules.leaves(self, exit_code)
        self.run.joins.left(self, exit_code)
        claim = self.run.disk.latest_claim
        if exit_code == ExitCode.NODES_MISSING and claim is not None and self.name in claim.members:
            self.run.witness.see("loss")  # it gave up just before it heard that it was let in
        self.exit_code = exit_code
        self.left_at = self.run.clock.now

    def die(self, *, is_power_off: bool = False) -> None:
        """The process is gone, and its workers with it; the kernel closes its connections if there is one."""
        if not self.is_powered or not (self.is_running or is_power_off):
            return
        self.run.trace(self, "power off" if is_power_off else "killed")
        self.was_killed = self.was_killed or (self.is_running and not is_power_off)
        was_running, self.died_at = self.is_running, min(self.died_at, self.run.clock.now)
        if is_power_off:
            self.is_powered = False
            self.workers.alive.clear()
            for socket in list(self.sockets):
                socket.vanish()
        elif was_running:
            self.workers.kill_all()
        self._stop_running()

    def _stop_running(self) -> None:
        self.is_running = False
        self.run.clock.has_news = True
        self.gone_at = self.run.clock.now
        self.guard.dismiss()
        self.process.kill()
        self.headquarters = None
        if self.listener is not None:
            self.listener.close()
        for socket in list(self.sockets):
            socket.abort()

    # What happens on the node.

    def pause(self, seconds: float, point: int = -1) -> None:
        """The process is frozen now, or at a point of its code that comes some time from now."""
        if point >= 0:
            self.process.freeze_at(point, seconds)
        else:
            self.process.freeze(seconds)

    def terminate(self) -> None:
        """A TERM from outside: to every process of the node, or to the agent alone."""
        if self.dice.random() < 0.5:
            self.has_term = True
            self.workers.terminate_all()
        self.run.clock.after(self.dice.uniform(0, 0.02), lambda: self.process.signal(signal.SIGTERM))

    def break_store(self) -> None:
        """The store host ends, if there is one."""
        if self.workers.served is not None:
            self.run.witness.broke(self)
            self.run.reports.breaks(self)
            self.run.trace(self, "the store host ends")
            self.process.arrives(self._broke)

    def _broke(self) -> None:
        self.run.reports.breaks(self)
        self.run.witness.has_broken(self)
        self.part.member.node_broke("the store host ended (exit code -9)")

    def heard(self, message: Message) -> None:
        """The member is about to hear its head."""
        member = self.member
        # What a head says that was given up is no contact: it has no beat by which it could know of one. Nor is what
        # comes when the member's lease is over, which it sees first.
        is_lost = member._allegiance.is_headless or self.now >= member._silence_deadline()
        if self.headquarters is None and not is_lost:
            self.contacts[self.part.heads._head_node] = self.run.clock.now
        self._was_leaving = member._leave is not None or is_lost
        if message.KIND != "echo":
            self._hears(message)

    def _hears(self, message: Message) -> None:
        """Something else than an answer to a beat."""
        self.run.trace(self, message)
        self.run.reports.hears(self, message)
        self.run.limits.hears(self, message)
        self.run.polls.hears(self, message)
        if isinstance(message, Welcome) and self.name not in self.run.witness.joined:
            self.run.promptness.welcomed(self)
        if isinstance(message, Welcome):
            self.run.witness.joined.add(self.name)
        self.is_refused = self.is_refused or isinstance(message, Refused)

    def has_heard(self, message: Message) -> None:
        """The member has heard its head: one that stood still may have given it up before it listens to it."""
        leave = self.member._leave
        is_heeded = isinstance(message, RunEnd) and (leave is None or leave.cause == message.cause)
        self.is_told = self.is_told or is_heeded
        if isinstance(message, RunEnd) and leave is not None and not self._was_leaving:
            told = (message.exit_code, message.cause, message.ends_job, message.stands_by, message.flush)
            does = (leave.exit_code, leave.cause, leave.ends_job, leave.stands_by, leave.flush)
            require(does == told, f"{self.name} is to leave with {told}, and does with {does}")

    def hears_result(self, cause: str) -> None:
        """The member is about to leave for what is in the run directory."""
        self.is_told = self.is_told or any(result.cause == cause for result in self.run.disk.results)
