"""Runs a node's part of each attempt: its store, its workers, and the copy of their output to the agent's log."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from hpc_elastic.agent.keeper.fetch import BreakOff
from hpc_elastic.agent.keeper.link import KeeperLink, kept_attempt
from hpc_elastic.agent.node.environment import NodeFacts, worker_directory, worker_environment, worker_target
from hpc_elastic.agent.node.network import listen_on_first
from hpc_elastic.agent.node.preparation import NodeReport
from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.agent.system.processes import Marks, agent_id
from hpc_elastic.agent.workers.heartbeats import Heartbeats
from hpc_elastic.agent.workers.last_words import LastWords
from hpc_elastic.agent.workers.lifecycle import Explained, StopTimes, WorkerExit, Workers
from hpc_elastic.agent.workers.log_destinations import choose_destinations
from hpc_elastic.agent.workers.log_marks import LogMarks, follow_logs
from hpc_elastic.agent.workers.log_pipes import LogPipes, start_pipes
from hpc_elastic.agent.workers.notice_signal import NoticeSignal
from hpc_elastic.agent.workers.rank_states import RankStates, StateNotHereError, close_memories
from hpc_elastic.agent.workers.requested_saves import RequestedSaves
from hpc_elastic.agent.workers.spawn import SpawnedWorker, Starter, StartFailedError, WorkerOrder, spawn_workers
from hpc_elastic.agent.workers.stalls import Stalls
from hpc_elastic.agent.workers.state_files import write_states
from hpc_elastic.agent.workers.state_room import StateRoom
from hpc_elastic.agent.workers.store_link import StoreLink
from hpc_elastic.agent.workers.tee import Tee, start_tee
from hpc_elastic.agent.workers.worker_start import WorkerStart
from hpc_elastic.last_word import Word
from hpc_elastic.membership.messages import Assign, StopManner
from hpc_elastic.membership.notices import NoticeCounts, NoticeGiven
from hpc_elastic.membership.ports import port_sequence
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.plan.roles import store_nodes
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import Endpoint
from hpc_elastic.rundir.state_records import Flush, HeldState
from hpc_elastic.scheduler.allocation import Allocation

T = TypeVar("T")
START_TRIES = 3
FLUSHES_WITHIN_S = 600.0  # 600 GB at 1 GB/s; a job that is being ended is killed before
START_AGAIN_S = 1.0
POLLS_SETTLE_S = 0.01  # a processor may show a call's number some nanoseconds after the call has looked for a notice
FROM_THE_FIRST = NoticeCounts(polls=1, beats=1)


class _MayNotRunError(Exception):
    """The time until which this node's workers may run is over."""


class LocalWorkers:
    """This node's workers, attempt after attempt: initialised, monitored, stopped, shut down.

    Args:
        plan: the launch plan.
        allocation: this node's place.
        report: what was found out about the node.
        thread: the thread in which processes are started and found.
        start: decides how workers are started.
        guard: returns the process ids of children of the agent that no stop may reach; called in the thread.
        say: takes a line for the agent's log.
        on_exit: called for each worker's end that no stop explains for certain, with attempt, local rank, exit code
            (negative for a signal), and whether only its error file can tell if it failed by itself.
        on_broken: called with the reason if the attempt cannot go on although no worker failed.
        may_start: returns whether workers may run; called in the thread right before they start, because an agent
            that was paused before may have lost its head meanwhile. If they may not, the start is tried again, as
            after other trouble that may pass.
        on_states_closed: called in any thread with the line that says that no training state is saved on this node from
            now on, and the latest attempt.
        keeper: copies this node's training states to another node, and keeps those of others, if it is set.
        start_again_s: the pause after a failed start whose cause may pass, in seconds.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        allocation: Allocation,
        report: NodeReport,
        *,
        thread: BackgroundThread,
        start: WorkerStart,
        guard: Callable[[], Sequence[int]],
        say: Callable[[str], None],
        on_exit: Callable[[int, int, int, bool], None],
        on_broken: Callable[[str], None],
        may_start: Callable[[], bool] = lambda: True,
        on_states_closed: Callable[[str, int], None] = lambda *_: None,
        keeper: KeeperLink | None = None,
        start_again_s: float = START_AGAIN_S,
    ) -> None:
        self._plan = plan
        self._allocation = allocation
        self._report = report
        self._layout = RunLayout(plan.run_dir)
        self._thread = thread
        self._say = say
        self._on_exit = on_exit
        self._may_start = may_start
        self._start_again_s = start_again_s
        self._stop_asked = asyncio.Event()
        self._start = start
        self._store = StoreLink(plan.package_dir, start=start, thread=thread, say=say, on_broken=on_broken)
        self._workers = Workers(
            thread,
            marks=Marks(run_dir=plan.run_dir, node=allocation.node, agent=agent_id(os.getpid())),
            times=StopTimes(grace_s=plan.signals.grace_s, restart_grace_s=plan.signals.restart_grace_s),
            spared=lambda: [*guard(), *self._start.pids(), *self._store.pids(), *(keeper.pids() if keeper else ())],
            on_exit=self._exited,
            saving=lambda: self.heartbeats.saving(),
        )
        self._last_words = LastWords(self._workers.hear)
        self._listener = self._next_listener(0)
        self._notice_signal = NoticeSignal(
            plan.signals.notice, running=self._workers.running, send=self._workers.send, say=say
        )
        self.heartbeats = Heartbeats(notice_signal=int(self._notice_signal.number or 0))
        self.stalls: Stalls | None = None  # watches the heartbeats, if it is set
        self._keeper = keeper
        self._states = _states_of(plan, report, keeper, say, lambda line: on_states_closed(line, self._attempt()))
        self.requested_saves = RequestedSaves(self._states, self._layout)
        self._copies: BackgroundThread | None = None  # reads and writes states, where that is done at all
        self._is_hurried = asyncio.Event()
        self._tee: Tee | None = None
        self._pipes: LogPipes | None = None
        self._marks = LogMarks()
        self._orders: dict[int, WorkerOrder] = {}
        self._pids: dict[int, int] = {}
        self._failing: dict[int, Word] = {}  # by local rank: what failed workers said of the exception that ended them
        self._ended_by_stop: list[WorkerOrder] = []  # those of the latest attempt
        self._starting: asyncio.Task[None] | None = None
        self.started = 0.0  # the start of the latest attempt, in Unix seconds
        self.paused: frozenset[int] = frozenset()  # global ranks that stood still when the latest stop began
        self.start_method = ""  # how its workers were started: fork or spawn

    def explain_kills(self, explain: Callable[[int], str]) -> None:
        """Set what tells how a process of the agent with this id was killed that a SIGKILL ended; it may block."""
        self._store.explain_kill = explain

    @property
    def store_port(self) -> int:
        """The port on which the next attempt's store will listen; a socket of this agent already listens on it."""
        return int(self._listener.getsockname()[1])

    @property
    def keeper_port(self) -> int:
        """The port on which other nodes fetch training states, and send theirs; 0: they cannot."""
        return self._keeper.port if self._keeper is not None else 0

    async def warm_up(self) -> None:
        """Start the keeper, and the store host if this node is likely to serve a store, as the agents still gather."""
        if self._keeper is not None:
            await self._keeper.start()
        if self._allocation.node_id in store_nodes(self._plan.roles, len(self._allocation.nodes)):
            await self._store.start()

    async def initialize_workers(self, assign: Assign) -> None:
        """Serve the attempt's store if it is assigned to this node, and start and monitor the workers.

        Raises:
            StartFailedError: a worker could not be started, and none runs.
            StateNotHereError: this node has not the training state with which they were to begin, and none runs.
        """
        self.started = time.time()
        self._stop_asked.clear()
        starting = self._starting = asyncio.get_running_loop().create_task(self._initialize_workers(assign))
        await starting

    async def stop_workers(
        self, manner: StopManner, *, is_terminated: bool, takes_stacks: bool = False
    ) -> tuple[int, ...]:
        """End the workers and all they started, and start no more; return the process ids that survived KILL.

        `is_terminated`: the workers that run have got a TERM from outside, as far as they did not start just now.
        """
        asked_at = asyncio.get_running_loop().time()
        self.paused = self._workers.paused()  # first: what follows takes time, in which somebody may end the pause
        self._stop_asked.set()
        self.requested_saves.interrupt()
        await self._notice_signal.end()
        if self._starting is not None:
            await asyncio.gather(self._starting, return_exceptions=True)
        if self.stalls is not None:
            await self._until_hurried(self.stalls.before_stop(manner, takes_stacks=takes_stacks))
        unkillable = await self._workers.stop_workers(manner, is_terminated=is_terminated, asked_at=asked_at)
        self._is_hurried.clear()
        tee, self._tee = self._tee, None
        if tee is not None:
            await self._thread.call(tee.close)
        await self._close_pipes()
        self._marks.stop()
        return unkillable

    async def hold_for_notice(self, attempt: int, notice: NoticeGiven) -> NoticeCounts:
        """Have the calls of an attempt's workers wait that ask for a notice; return how many they had made."""
        self.heartbeats.hold_for_notice(attempt, notice)
        if self._pids:  # else they are still to be started
            self._notice_signal.begin()
        await asyncio.sleep(POLLS_SETTLE_S)
        return self.heartbeats.count_polls(attempt)

    def name_notice(self, attempt: int, first: NoticeCounts) -> None:
        """Let the waiting calls go on; those with these numbers and above hear of the notice."""
        self.heartbeats.name_notice(attempt, first)

    def pass_on(self, number: signal.Signals) -> None:
        """Send a signal that this agent got to the workers that have a handler for it."""
        self._notice_signal.pass_on(number)

    def hurry(self, *, spares_savers: bool = False) -> None:
        """End the grace period of a running stop early, perhaps but for workers that save."""
        self._is_hurried.set()
        self._workers.hurry(spares_savers=spares_savers)

    async def held_states(self, *, is_quick: bool = False) -> tuple[HeldState, ...]:
        """Return the training states in memory that all ranks of this node hold undamaged; no worker may run.

        Copies of other nodes' states are among them.
        """
        copies = await self._keeper.copies() if self._keeper is not None else ()
        if not self._states.has_some:  # as in most runs, whose restarts wait for no other thread
            return copies
        if is_quick:
            return self._states.hold() + copies
        return await asyncio.get_running_loop().run_in_executor(None, self._states.verify) + copies

    def pids(self) -> dict[str, int]:
        """Return the process ids of the latest attempt's workers, by global rank."""
        return {str(self._orders[local_rank].rank): pid for local_rank, pid in self._pids.items()}

    def running(self) -> tuple[int, tuple[int, ...]]:
        """Return the latest attempt (0 before the first one) and its workers' process ids; any thread may ask."""
        orders, pids = self._orders, self._pids
        return max((order.attempt for order in list(orders.values())), default=0), tuple(pids.copy().values())

    def orders(self) -> list[WorkerOrder]:
        """Return the orders with which the workers of the latest attempt are started."""
        return list(self._orders.values())

    def order_of(self, local_rank: int) -> tuple[WorkerOrder, int]:
        """Return the order of a worker of the latest attempt, and its process id (0: never started)."""
        return self._orders[local_rank], self._pids.get(local_rank, 0)

    def failing_word(self, local_rank: int) -> Word | None:
        """Return what a failed worker of the latest attempt said of the exception that ended it, None if nothing."""
        return self._failing.get(local_rank)

    def ended_by_stop(self) -> list[WorkerOrder]:
        """Return the orders of the workers of the latest attempt that a stop has ended."""
        return list(self._ended_by_stop)

    async def shut_down(self) -> None:
        """End the store host and the fork server; all workers must have ended before."""
        self._listener.close()
        self._last_words.close()
        await self._notice_signal.end()
        if self.stalls is not None:
            await self.stalls.close()
        self.heartbeats.close()
        await self.requested_saves.close()
        self._states.close()
        closing = [self._keeper.close()] if self._keeper is not None else []
        await asyncio.gather(self._store.close(), self._start.close(), self._thread.call(self._marks.close), *closing)

    async def flush_state(self, flush: Flush) -> str:
        """Write this node's part of a training state to the run directory; return a line about it, "" if it has none.

        No worker may run. It is given up after `FLUSHES_WITHIN_S` or the time of `flush`, and when a person hurries.
        """
        parts = self._states.parts_of(flush, self._layout)
        if not parts and not flush.copies:
            return ""

        def write() -> str:
            every = [*parts, *self._states.copies_of(flush, self._layout)]
            return write_states(self._layout, flush, every) if every else ""

        writing = self._copying().call(write)
        hurried = asyncio.ensure_future(self._is_hurried.wait())
        waited: set[asyncio.Future[Any]] = {writing, hurried}
        most_s = FLUSHES_WITHIN_S if flush.within_s is None else min(FLUSHES_WITHIN_S, flush.within_s)
        await asyncio.wait(waited, timeout=most_s, return_when=asyncio.FIRST_COMPLETED)
        if not writing.done():
            why = "hurried" if hurried.done() else f"{most_s:.0f} s are over"
            return f"step {flush.state.step} is not kept for the next allocation: its writing was broken off ({why})"
        hurried.cancel()
        return writing.result()

    async def _initialize_workers(self, assign: Assign) -> None:
        self._pids.clear()
        self._failing.clear()
        self._ended_by_stop.clear()
        self.requested_saves.interrupt()
        await self._close_pipes()
        try:
            if self._states.lacks(assign) is not None and not await self._fetch_state(assign):
                self._orders = {}
                return
            self._orders = {order.local_rank: order for order in self._build_orders(assign)}
        except StateNotHereError:  # the workers elsewhere begin with it, so these may not begin without
            self._orders = {}
            raise
        await self._unless_stopped(self._start.ready())
        if assign.serves_store and not self._stop_asked.is_set():
            listener, self._listener = self._listener, self._next_listener(assign.attempt)
            await self._store.serve(assign.attempt, assign.master, listener)
        orders = list(self._orders.values())
        spawned = await self._start_all(orders)
        if not spawned:
            return
        # Before anything is waited for: a worker that has ended meanwhile would pass for one that could not be started.
        self._pids = {worker.order.local_rank: worker.pid for worker in spawned}
        if self._keeper is not None:
            kept = kept_attempt(assign, takes_copies=self._states.takes_copies)
            await self._keeper.begin(kept, self._states.descriptors)
        if self.heartbeats.has_notice:
            self._notice_signal.begin()
        if self.stalls is not None:
            self.stalls.begin(orders, self._workers.running, role=self._facts(assign).role)
        follow_logs(self._marks, self._plan.logs, self._layout, orders, node=self._allocation.node)
        self._tee = start_tee(self._plan.logs, self._layout, orders, node=self._allocation.node)
        # Collects the reference cycles of the attempt before now, when nothing waits for the agent. They are few, and
        # by itself Python would keep those of a hundred attempts. It takes 0.03 ms, because `agent.main` has excluded
        # the imported modules from collection.
        gc.collect()

    async def _fetch_state(self, assign: Assign) -> bool:
        """Get the state with which an attempt begins from a node or a file; return False if a stop is asked for.

        Raises:
            StateNotHereError: this node cannot read it.
        """
        breaking = BreakOff()
        fetching = self._copying().call(lambda: self._states.fetch(assign, self._layout, breaking))
        stop = asyncio.ensure_future(self._stop_asked.wait())
        waited: set[asyncio.Future[Any]] = {fetching, stop}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not fetching.done():
            fetching.add_done_callback(close_memories)
            breaking.ask()
            # What follows, such as the writing of a state before the job ends, gets a thread that waits for nobody.
            self._copying().abandon()
            self._copies = None
            return False
        if (files := fetching.result()) is not None:
            self._states.adopt(files, assign)
        return True

    def _copying(self) -> BackgroundThread:
        if self._copies is None:
            self._copies = BackgroundThread("states", asyncio.get_running_loop())
        return self._copies

    async def _close_pipes(self) -> None:
        pipes, self._pipes = self._pipes, None
        if pipes is not None:
            await self._thread.call(pipes.close)

    async def _start_all(self, orders: list[WorkerOrder]) -> list[SpawnedWorker]:
        """Start all workers or none; after a failure whose cause may pass, try again after a pause.

        When the workers may not run any more this node has heard nothing for too long, which is no failure of theirs:
        either the stop that membership asks for comes, or news after which they may.
        """
        failures, is_late = 0, False
        while True:
            try:
                starter = await self._unless_stopped(self._start.choose(orders))
                self.start_method = "" if starter is None else starter.name
                return await self._workers.start_workers(lambda: self._start_now(orders, starter))  # noqa: B023
            except _MayNotRunError:
                if not is_late:
                    self._say("the time until which this node's workers may run is over; none is started now")
                is_late = True
            except StartFailedError as error:
                failures += 1
                if failures >= START_TRIES or not error.is_passing:
                    raise
                failed = f"rank {error.order.rank} could not be started ({error})"
                self._say(f"{failed}; try {failures + 1} of {START_TRIES} follows")
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stop_asked.wait(), self._start_again_s)

    def _start_now(self, orders: list[WorkerOrder], starter: Starter | None) -> list[SpawnedWorker]:
        """Start the workers, in the thread; start none if a stop is asked for, which would end them at once."""
        if starter is None or self._stop_asked.is_set():
            return []
        if not self._may_start():
            raise _MayNotRunError
        return spawn_workers(orders, self._layout, starter)

    async def _unless_stopped(self, waiting: Coroutine[Any, Any, T]) -> T | None:
        """Wait for a coroutine and return its result, or None as soon as a stop is asked for."""
        task = asyncio.ensure_future(waiting)
        stop = asyncio.ensure_future(self._stop_asked.wait())
        await asyncio.wait([task, stop], return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if task.done():
            return task.result()
        task.cancel()
        return None

    async def _until_hurried(self, waiting: Coroutine[Any, Any, None]) -> None:
        """Wait for a coroutine, but not when the stop has to end at once."""
        task, hurried = asyncio.ensure_future(waiting), asyncio.ensure_future(self._is_hurried.wait())
        await asyncio.wait([task, hurried], return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if task.done():
            task.result()
        else:
            task.cancel()

    def _build_orders(self, assign: Assign) -> list[WorkerOrder]:
        orders = []
        plan, facts = self._plan, self._facts(assign)
        if assign.notice is not None:
            self.heartbeats.hold_for_notice(assign.attempt, assign.notice)
            self.heartbeats.name_notice(assign.attempt, FROM_THE_FIRST)
        files = self.heartbeats.begin(range(assign.first_rank, assign.first_rank + assign.workers), assign.attempt)
        states = self._states.begin(assign)
        for local_rank in range(assign.workers):
            environment = worker_environment(os.environ, plan, assign, facts, local_rank) | self._last_words.variables
            rank = assign.first_rank + local_rank
            target, arguments = worker_target(plan, facts.role, environment, is_restart=assign.attempt > 1)
            orders.append(
                WorkerOrder(
                    # `@record` in a child of a command writes into this folder and does not make it
                    has_folder=plan.logs.per == "rank" or facts.role.entrypoint.kind == "command",
                    rank=rank,
                    local_rank=local_rank,
                    attempt=assign.attempt,
                    kind=facts.role.entrypoint.kind,
                    target=target,
                    arguments=arguments,
                    environment=environment,
                    directory=worker_directory(plan, environment),
                    destinations=choose_destinations(plan.logs, rank=rank, local_rank=local_rank),
                    heartbeat=files[local_rank],
                    state=states[local_rank] if states else None,
                )
            )
        pipes = self._pipes = start_pipes(plan.logs, self._layout, orders, node=self._allocation.node, say=self._say)
        return orders if pipes is None else [replace(order, output=pipes.output(order)) for order in orders]

    def _facts(self, assign: Assign) -> NodeFacts:
        """Return the facts about this node for its role in an attempt: a spare may have the place of another role.

        It is bound to CPUs only if it has as many workers as before.
        """
        facts, role = self._report.facts, next(each for each in self._plan.roles if each.name == assign.role)
        cpus = facts.cpus if assign.workers == len(facts.cpus) else ()
        return facts if role.name == facts.role.name else replace(facts, role=role, cpus=cpus)

    def _next_listener(self, attempt: int) -> socket.socket:
        """Return a listening socket for the store of the attempt after this one."""
        key = f"{self._allocation.job_id}/store/{self._allocation.node_id}/{attempt}"
        ports = port_sequence(self._plan.run, key, self._plan.network.port_range)
        return listen_on_first(self._report.address, ports)

    def _attempt(self) -> int:
        return max((order.attempt for order in self._orders.values()), default=0)

    def _exited(self, worker: SpawnedWorker, ended: WorkerExit) -> None:
        order, is_after_stop = worker.order, ended.explained is Explained.PERHAPS
        if ended.explained is Explained.YES:
            self._ended_by_stop.append(order)
            return
        if ended.failing is not None:
            self._failing[order.local_rank] = ended.failing
        self._on_exit(order.attempt, order.local_rank, ended.exitcode, is_after_stop)


def _states_of(
    plan: LaunchPlan,
    report: NodeReport,
    keeper: KeeperLink | None,
    say: Callable[[str], None],
    on_closed: Callable[[str], None],
) -> RankStates:
    return RankStates(
        say,
        room=StateRoom(
            on_closed, percent=plan.state.limit_percent, copies=keeper.bytes_taken if keeper is not None else lambda: 0
        ),
        other_run=plan.state.load_from,
        dial=keeper.dial if keeper is not None else None,
        keeper=Endpoint(address=report.address, port=keeper.port) if keeper is not None else None,
    )
