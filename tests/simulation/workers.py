"""The simulated workers of one node: processes that nobody freezes, and what their agent does with them.

They are started, stopped and ended as `agent.workers.group` and `agent.workers.lifecycle` do it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpc_elastic.agent.workers.group import POLLS_SETTLE_S, START_AGAIN_S
from hpc_elastic.agent.workers.rank_states import StateNotHereError
from hpc_elastic.agent.workers.spawn import StartFailedError, WorkerOrder
from hpc_elastic.heartbeat_memory import NO_NOTICE, WAIT
from hpc_elastic.last_word import Word
from hpc_elastic.membership.member import MemberPhase
from hpc_elastic.membership.messages import Assign, StopManner
from hpc_elastic.membership.notices import TAKEN_EXIT_CODE, NoticeCounts, NoticeGiven
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import Endpoint
from hpc_elastic.rundir.state_records import HeldState
from tests.simulation.rules.invariants import require
from tests.simulation.rules.states import NodeStates
from tests.simulation.scenario import GRACE_S, RESTART_GRACE_S

if TYPE_CHECKING:
    from tests.simulation.agent import Agent

FIND_S = 0.01  # finding a node's processes
GONE_S = 0.02  # after a KILL, to be waited for
KILL_BOUND_S = 10.0
HANGS_S = 300.0
SHOWN_WITHIN_S = 0.008  # after a rank has counted a poll, its agent reads the number: nanoseconds on any machine
SAVES_EVERY_S = 20.0
KILL, TERM = -9, -15
ENDED_BY_STOP = (0, TERM, 143, KILL)


@dataclass(eq=False)
class Worker:
    """One process."""

    role: str
    attempt: int
    rank: int
    local_rank: int
    master: Endpoint
    started_at: float
    is_unkillable: bool = False
    has_term: bool = False
    save_s: float = 0.0  # how long a save takes; one begins every `SAVES_EVERY_S`
    saves_first: float = 0.0
    told_at: float = float("inf")  # when it got a TERM
    polls: int = 0  # calls of `notice_received` that have begun
    shown: int = 0  # as many as the agent would read
    waits_since: float | None = None  # in such a call
    does_hang: bool = False  # only a signal ends it
    is_paused: bool = False  # by a SIGSTOP
    awaits_others: bool = False  # in a collective, as its stack says
    written: str = ""  # by the program that it runs, to its log
    ends_with: int = TERM  # at a TERM: a wrapper may pass on how its program has ended

    def is_saving(self, now: float) -> bool:
        """Whether it is in a block of `saving`."""
        return now < self.saves_until(now)

    def saves_until(self, now: float) -> float:
        """When the save ends that began last; before the first one, long ago."""
        number = (min(now, self.told_at) - self.saves_first) // SAVES_EVERY_S  # after a TERM it begins none
        return self.saves_first + number * SAVES_EVERY_S + self.save_s if number >= 0 else -1.0


@dataclass(frozen=True, kw_only=True)
class _Order(WorkerOrder):
    """With the end of what the worker has written."""

    written: str = ""

    def stderr_tail(self, layout: RunLayout) -> str:
        return self.written


class Workers:
    """All of one node, attempt after attempt, and the store that may be served there: `agent.workers.node_workers`."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._run = agent.run
        self.alive: dict[int, Worker] = {}  # by local rank
        self._pids: dict[str, int] = {}  # of the latest attempt, also of those that have ended
        self.assign: Assign | None = None
        self.store_port = 1000 * (agent.number + 1) + 500 * agent.start_number
        self.served: tuple[int, int] | None = None  # attempt and port of the store that is served here
        self.has_next_unkillable = False
        self.waiting: frozenset[int] = (
            frozenset()
        )  # ranks that waited for others, by the stacks that were taken at last
        self.paused: frozenset[int] = frozenset()  # ranks that stood still when the latest stop began
        self.started = 0.0
        self.start_method = "fork"
        self._starting: asyncio.Task[None] | None = None
        self._stop_asked = asyncio.Event()
        self._sent: int | None = None
        self._notice = (0, NO_NOTICE)  # the attempt that has one, and the first poll that hears of it
        self._stopped: list[Worker] = []  # of the latest attempt, by a stop
        self._ended_late: list[Worker] = []  # of the latest attempt, with an error of their own after its TERM
        self._failed: list[Worker] = []  # of the latest attempt, by themselves
        self._latest: list[Worker] = []  # of the latest attempt, also those that have ended
        self.states: NodeStates = NodeStates(agent)
        self._hurry = asyncio.Event()
        self._spares_savers = False
        self._is_quiet = asyncio.Event()

    @property
    def attempt(self) -> int:
        """The one whose workers were started last."""
        return self.assign.attempt if self.assign is not None else 0

    # What the agent asks for.

    async def initialize_workers(self, assign: Assign) -> None:
        self._stop_asked.clear()
        self._interrupt_saves()
        self._pids = {}
        self._sent = None
        self._stopped, self._ended_late, self._failed = [], [], []
        self._hurry.clear()
        self.waiting = self.paused = frozenset()
        self.assign = assign
        if assign.notice is not None:
            self._notice = (assign.attempt, 1)
        self._starting = self._agent.process.create_task(self._start(assign))
        await self._starting

    def _interrupt_saves(self) -> None:
        if self._agent.saves is not None:
            self._agent.saves.interrupt()

    async def _start(self, assign: Assign) -> None:
        scenario = self._run.scenario
        if assign.serves_store:
            self.served, self.store_port = (assign.attempt, self.store_port), self.store_port + 1
        dice = self._dice("spawn", assign.attempt)
        fails = dice.random() < scenario.role(assign.role).start_failure_chance
        await asyncio.sleep(dice.choice(scenario.spawn_s))
        if self._stop_asked.is_set():
            return
        self._agent.process.reached()
        while self._agent.guard.has_expired:  # as `LocalWorkers`: a stop arrives, or news of the head
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stop_asked.wait(), START_AGAIN_S)
            if self._stop_asked.is_set():
                return
        self._agent.process.reached()
        if fails:
            self._run.witness.start_failed(self._agent, assign)
            raise StartFailedError(self.orders()[0], "it cannot be started", is_passing=False)
        if not self._agent.guard.has_expired:  # each worker looks itself
            if self.states.fetch(assign) is not None:
                self._run.witness.lacks_state(self._agent, assign)
                raise StateNotHereError("the file is damaged")
            self._spawn(assign)

    def _spawn(self, assign: Assign) -> None:
        self._run.conduct.starts_workers(self._agent)
        self._agent.circumstances.starts(assign)
        self._latest = []
        self.states.begin(assign)
        for local_rank in range(assign.workers):
            rank, now = assign.first_rank + local_rank, self._run.clock.now
            worker = Worker(assign.role, assign.attempt, rank, local_rank, assign.master, now)
            self._run.spent["worker"] += 1
            self._run.witness.began_at.setdefault((assign.role, assign.attempt), now)
            worker.save_s = self._run.scenario.save_s
            worker.saves_first = now + self._dice("saves", assign.attempt, local_rank).uniform(0, SAVES_EVERY_S)
            self.alive[local_rank] = worker
            self._pids[str(rank)] = 100 + rank
            self._draw_fate(worker)
            if self._run.scenario.keeps_every_s is not None:
                self.states.work(worker, self._dice("saves", assign.attempt, local_rank))
            if self._run.polls.are_played:
                self._latest.append(worker)
                self._poll_later(worker, self._dice("polls", assign.attempt, local_rank))
        self._run.changes()
        self._run.witness.started(self._agent, assign)

    async def stop_workers(
        self, manner: StopManner, *, is_terminated: bool, takes_stacks: bool = False
    ) -> tuple[int, ...]:
        is_so = self._agent.has_term or not is_terminated
        require(is_so, f"{self._agent.name} takes its workers for terminated, and nobody has sent them a TERM")
        require(not (is_terminated and manner.hardness), f"{self._agent.name} asks for a TERM before it kills at once")
        self._stop_asked.set()
        self._interrupt_saves()
        self.paused = frozenset(worker.rank for worker in self.alive.values() if worker.is_paused)
        if takes_stacks and not manner.hardness:
            self.waiting = frozenset(worker.rank for worker in self.alive.values() if worker.awaits_others)
        if self._starting is not None:
            await asyncio.gather(self._starting, return_exceptions=True)
        self._spares_savers |= manner is StopManner.LOSS
        began = self._run.clock.now
        if not manner.hardness and not self._hurry.is_set():
            if not is_terminated:
                await asyncio.sleep(FIND_S)
            if manner is StopManner.RESTART and not is_terminated and self._run.scenario.save_s:
                self._sent = TERM
                self.terminate_all(spares_savers=True)
                await self._let_save(began + GRACE_S)
            await self._terminate(
                RESTART_GRACE_S if manner is StopManner.RESTART else self._run.scenario.grace_s, is_terminated
            )
        else:
            await asyncio.sleep(FIND_S)
        if self._spares_savers:
            self._hurry.clear()
            self._sent = self._sent or TERM
            self.kill_all(spares_savers=True)
            await self._let_save(began + GRACE_S)
        self._spares_savers = False
        self._run.saves.stops(self._agent, self.alive.values(), began)
        self._sent = KILL
        self._choose_unkillable()
        self.kill_all()
        is_any_unkillable = any(worker.is_unkillable for worker in self.alive.values())
        await asyncio.sleep(KILL_BOUND_S if is_any_unkillable else GONE_S)
        return tuple(100 + worker.rank for worker in self.alive.values() if worker.is_unkillable)

    async def _terminate(self, grace_s: float, is_terminated: bool) -> None:
        if self._hurry.is_set():  # meanwhile
            return
        self._sent = TERM
        self._choose_unkillable()
        if not is_terminated:
            self.terminate_all()
        self._is_quiet.clear()
        if self.alive:
            waits = [self._agent.process.create_task(event.wait()) for event in (self._is_quiet, self._hurry)]
            await asyncio.wait(waits, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()

    async def _let_save(self, until: float) -> None:
        """Wait as long as a worker saves; it begins no other save, since it is told to end when this one is done."""
        clock = self._run.clock
        while not self._hurry.is_set() and clock.now < until:
            ends = [worker.saves_until(clock.now) for worker in self.alive.values() if worker.is_saving(clock.now)]
            if not ends:
                return
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), max(0.001, min(until, *ends) - clock.now))

    def escalate(self) -> None:
        """A second signal has come to the agent: who sends it wants no more time for the workers."""
        self._spares_savers = False
        self._hurry.set()

    def hurry(self, *, spares_savers: bool = False) -> None:
        self._run.reports.hurries(self._agent)
        self._spares_savers = spares_savers
        self._hurry.set()

    async def hold_for_notice(self, attempt: int, notice: NoticeGiven) -> NoticeCounts:
        if self._notice[0] != attempt:
            self._notice = (attempt, WAIT)
        await asyncio.sleep(POLLS_SETTLE_S)
        polls = max((worker.shown for worker in self._latest if worker.attempt == attempt), default=0)
        return NoticeCounts(polls=polls, beats=3 * polls)

    def name_notice(self, attempt: int, first: NoticeCounts) -> None:
        is_none, is_alike = first.polls == first.beats == NO_NOTICE, first.beats - 1 == 3 * (first.polls - 1)
        require(is_none or is_alike, f"beats are named otherwise than polls: {first}")
        if self._notice == (attempt, WAIT):
            self._notice = (attempt, first.polls)

    async def held_states(self, *, is_quick: bool = False) -> tuple[HeldState, ...]:
        at_work = [worker.rank for worker in self.alive.values() if not worker.is_unkillable]
        require(not at_work, f"{self._agent.name} reads the states of its ranks, and {at_work} are at work")
        return self.states.verify()

    def pids(self) -> dict[str, int]:
        return dict(self._pids)

    def orders(self) -> list[WorkerOrder]:
        assert self.assign is not None
        return [self.order_of(local_rank)[0] for local_rank in range(self.assign.workers)]

    def ended_by_stop(self) -> list[WorkerOrder]:
        return [self.order_of(worker.local_rank)[0] for worker in self._stopped]

    def order_of(self, local_rank: int) -> tuple[WorkerOrder, int]:
        assert self.assign is not None
        rank = self.assign.first_rank + local_rank
        ended = (each for each in (*self._stopped, *self._ended_late, *self._failed) if each.local_rank == local_rank)
        written = next((each.written for each in ended), "")
        order = _Order(
            written=written,
            rank=rank,
            local_rank=local_rank,
            attempt=self.assign.attempt,
            kind="script",
            target="train.py",
            arguments=(),
            environment={},
            directory="/",
        )
        return order, 100 + rank

    def failing_word(self, local_rank: int) -> Word | None:
        return None

    # What they ask.

    def _poll_later(self, worker: Worker, dice: random.Random) -> None:
        """A rank makes its next step, each at its own speed, and asks for a notice."""
        after_s = dice.uniform(0.01, 0.3) * (1 + worker.rank % 3)
        if self._run.scenario.heeds_notice:  # then they keep step, as in training
            after_s = dice.uniform(0.1, 0.11)
        self._run.clock.after(after_s, lambda: self._poll(worker, dice))

    def _poll(self, worker: Worker, dice: random.Random) -> None:
        """A rank counts its call, and then looks; others see the number a moment later."""
        worker.polls += 1
        number = worker.polls
        self._run.clock.after(dice.uniform(0, SHOWN_WITHIN_S), lambda: setattr(worker, "shown", number))
        worker.waits_since = self._run.clock.now
        self._look(worker, dice)

    def _look(self, worker: Worker, dice: random.Random) -> None:
        if self.alive.get(worker.local_rank) is not worker:
            return
        attempt, first = self._notice
        if attempt == worker.attempt and first == WAIT:
            self._run.polls.waits(worker)
            self._run.clock.after(0.02, lambda: self._look(worker, dice))
            return
        is_heard = attempt == worker.attempt and worker.polls >= first > NO_NOTICE
        self._run.polls.answered(worker, is_heard=is_heard)
        worker.waits_since = None
        if is_heard and self._run.scenario.heeds_notice:
            self._run.clock.after(dice.uniform(0.1, 0.5), lambda: self.end(worker, TAKEN_EXIT_CODE))
            return
        self._poll_later(worker, dice)

    # What becomes of them.

    def _draw_fate(self, worker: Worker) -> None:
        """What becomes of a worker that nobody stops is known when it starts."""
        role, dice = self._run.scenario.role(worker.role), self._dice("fate", worker.attempt, worker.local_rank)
        if dice.random() < role.failure_chance:
            after, exitcode = dice.uniform(0, role.work_s), dice.choice([1, 1, 7, KILL, -11])
            if exitcode == 7 and not self._run.scenario.may_give_notice:
                exitcode = TAKEN_EXIT_CODE  # which means nothing without a notice
            self._run.clock.after(after, lambda: self.end(worker, exitcode))
        elif dice.random() < role.hang_chance:
            self._run.clock.after(HANGS_S, lambda: self.end(worker, 1))
        else:
            self._run.clock.after(role.work_s * dice.uniform(0.8, 1.2), lambda: self.end(worker, 0))

    def end(self, worker: Worker, exitcode: int) -> None:
        """A process ends, whether or not its agent runs just now."""
        if self.alive.get(worker.local_rank) is not worker or worker.is_unkillable:
            return
        if worker.does_hang and not worker.has_term and exitcode != KILL:
            return
        del self.alive[worker.local_rank]
        if exitcode == KILL:
            self._run.interrupts.kills(self._agent, worker.rank)
        self._run.bookkeeping.ended(worker)
        # Between the beginning of a stop and its TERM nobody can tell another TERM from that one.
        is_stopped = self._is_stop_of(exitcode) or (
            exitcode == TERM and self._agent.member.phase is MemberPhase.STOPPING
        )
        self._run.witness.ended(self._agent, worker, exitcode, is_stopped=is_stopped)
        self._agent.process.arrives(self._collect, worker, exitcode)

    def _collect(self, worker: Worker, exitcode: int) -> None:
        if not self._is_stop_of(exitcode):
            self._run.trace(self._agent, f"worker {worker.local_rank} of attempt {worker.attempt} exited {exitcode}")
            self._failed.append(worker)
            reports = self._run.reports
            is_at_work = reports.ends(self._agent, worker, exitcode)
            # Nor can it tell where the end came just before the stop, and it has seen the stop first.
            if exitcode == TERM and self._agent.member.phase is MemberPhase.STOPPING:
                self._run.witness.is_taken_for_stopped(worker)
            self._agent.part.member.worker_exited(worker.attempt, worker.local_rank, exitcode)
            reports.has_ended(self._agent, worker, exitcode, was_at_work=is_at_work)
            self._run.noted.has_ended(self._agent, worker)
        elif self._sent == TERM and exitcode not in ENDED_BY_STOP:
            self._ended_late.append(worker)
            self._agent.part.member.worker_exited(worker.attempt, worker.local_rank, exitcode, is_after_stop=True)
        else:
            self._stopped.append(worker)
        if not self.alive:
            self._is_quiet.set()

    def _is_stop_of(self, exitcode: int) -> bool:
        """After a TERM of ours only a KILL of somebody else's is no work of the stop."""
        return self._sent == KILL or (self._sent == TERM and exitcode != KILL)

    def terminate_all(self, *, spares_savers: bool = False) -> None:
        """A TERM reaches every process, from outside or from a stop; a worker heeds the first."""
        for worker in list(self.alive.values()):
            if worker.has_term or (spares_savers and worker.is_saving(self._run.clock.now)):
                continue
            worker.has_term, worker.told_at = True, self._run.clock.now
            patience_s = self._run.scenario.role(worker.role).patience_s
            dice = self._dice("term", worker.attempt, worker.local_rank)
            saves = patience_s > 0 and dice.random() < 0.7
            after = dice.uniform(0.3, patience_s + 0.3) if saves else dice.uniform(0, 0.01)
            exitcode = dice.choice([0, 143, TERM]) if saves else worker.ends_with
            if exitcode == TERM and not saves:  # a shell that runs the program says it so
                exitcode = dice.choice([TERM, TERM, 143])
            self._run.clock.after(after, lambda worker=worker, exitcode=exitcode: self.end(worker, exitcode))  # type: ignore[misc]

    def kill_all(self, *, spares_savers: bool = False) -> None:
        """KILL to every process, of a stop, of the guard, or because the agent died."""
        for worker in list(self.alive.values()):
            if spares_savers and worker.is_saving(self._run.clock.now):
                continue
            self._run.clock.after(0.01, lambda worker=worker: self.end(worker, KILL))  # type: ignore[misc]

    def _choose_unkillable(self) -> None:
        """One process hangs in the kernel: no signal ends it."""
        if self.has_next_unkillable and self.alive:
            self.has_next_unkillable = False
            next(iter(self.alive.values())).is_unkillable = True
            self._run.witness.unkillable.add(self._agent.name)

    def _dice(self, *what: object) -> random.Random:
        """The same for the same thing, whatever else happens in the run."""
        return random.Random(f"{self._run.scenario.seed}/{self._agent.number}/{what}")
