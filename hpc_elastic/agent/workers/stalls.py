"""Watches this node's heartbeats, and on a stall takes the stacks of its workers and reports those that stalled.

Theory of operation. While an attempt's workers run, a task compares their heartbeats with the bounds of the job file.
If ranks have stalled, every rank of the node writes its stacks. Ranks that wait for other ranks, in a collective, are
consequences: they are reported as `collective_timeout`, and only after those that stopped somewhere else (`stalled`).
If all that stalled here wait, the report is held back for a moment: the rank that they wait for is most likely on
another node, whose agent reports it, and the head's stop comes. Before any stop but a fence, a node whose ranks have
been silent for half a bound takes their stacks too; so those of all nodes are there, whichever agent was the first.

An agent that was paused (SIGSTOP, a suspend of the job, a machine in trouble) cannot tell whether its workers were
too. It counts from then on, as if each rank had made a heartbeat at that moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.agent.system.processes import Marks
from hpc_elastic.agent.system.tasks import Tasks
from hpc_elastic.agent.workers.heartbeats import Heartbeats
from hpc_elastic.agent.workers.spawn import WorkerOrder
from hpc_elastic.agent.workers.stacks import STACKS_WITHIN_S, take_stacks
from hpc_elastic.errors import ExitCode, RunDirectoryError
from hpc_elastic.failures.classes import FailureClass
from hpc_elastic.failures.pace import SlowRank, falls_behind, find_pace
from hpc_elastic.failures.stacks import (
    RankStack,
    Whereabouts,
    describe_groups,
    find_waiting,
    find_whereabouts,
    group_stacks,
    may_all_wait,
)
from hpc_elastic.failures.stall import StalledRank, StallLimits, find_stalled
from hpc_elastic.membership.actions import Note
from hpc_elastic.membership.messages import StopManner
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.plan.roles import RolePlan
from hpc_elastic.rundir.error_file import FailedWorker, build_error
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import FailureRecord
from hpc_elastic.rundir.sample_tail import latest_samples, ranks_seen
from hpc_elastic.rundir.store import make_directory, write_bytes, write_json
from hpc_elastic.scheduler.allocation import Allocation


@dataclass(frozen=True, slots=True, kw_only=True)
class StallTimes:
    """How often the heartbeats are read, and how long a report is held back, in seconds.

    `look_every_s` is an upper bound: they are read ten times within the smaller bound of the job file. `others_s`: from
    a stop for a stall to the first TERM, so that no rank of another node loses its peer before its stacks are taken.
    `compare_every_s`: how often the steps of all ranks are compared, from the nodes' samples.
    """

    look_every_s: float = 1.0
    hold_s: float = 5.0
    others_s: float = 1.0
    compare_every_s: float = 60.0


STALL_TIMES = StallTimes()
MOST_NODES = 32  # whose samples are read at a time, to find slow ranks: what is written meanwhile waits


class Stalls:
    """The watch over the heartbeats of one node's workers.

    Args:
        plan: the launch plan.
        allocation: this node's place.
        heartbeats: what the workers write.
        disk: the thread for access to the run directory.
        say: takes a line for the agent's log.
        note: takes an event for the run's records.
        report: is called with each failure, once its error file is written or cannot be.
        times: how often it looks.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        allocation: Allocation,
        *,
        heartbeats: Heartbeats,
        disk: BackgroundThread,
        say: Callable[[str], None],
        note: Callable[[Note], None],
        report: Callable[[FailureRecord], None],
        times: StallTimes = STALL_TIMES,
    ) -> None:
        self._limits = StallLimits(stall_s=plan.stall_timeout_s, first_s=plan.start_timeout_s)
        self._place = allocation
        self._role = plan.role_on(allocation.node_id, len(allocation.nodes))
        self._layout = RunLayout(plan.run_dir)
        self._marks = Marks(run_dir=plan.run_dir, node=allocation.node)
        self._heartbeats = heartbeats
        self._disk = disk
        self._say = say
        self._note = note
        self._report = report
        self._times = times
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()
        self._orders: dict[int, WorkerOrder] = {}  # by global rank, of the workers that are watched
        self._running: Callable[[], Mapping[int, int]] = dict
        self._since = 0.0  # since when the workers are watched without a break
        self._have_stacks = False
        self.waiting: frozenset[int] = frozenset()  # global ranks that waited in a collective, by the latest stacks
        self._taking = asyncio.Lock()
        self._over = asyncio.Event()  # the end of the latest watch

    def begin(
        self, orders: Sequence[WorkerOrder], running: Callable[[], Mapping[int, int]], *, role: RolePlan | None = None
    ) -> None:
        """Watch the workers of an attempt, which have just been started.

        Args:
            orders: what they were started with.
            running: returns the process ids of those that still run, by global rank.
            role: their role, if it may be another one than before.
        """
        self._role = role or self._role
        self._orders = {order.rank: order for order in orders}
        self._running = running
        self._since = self._loop.time()
        self._have_stacks = False
        self.waiting = frozenset()
        self._over.set()
        over = self._over = asyncio.Event()
        self._tasks.run(self._watch_steps(orders[0].attempt, over))
        if self._limits.smallest_s is not None:
            self._tasks.run(self._watch(self._limits.smallest_s, orders[0].attempt, over))

    async def before_stop(self, manner: StopManner, *, takes_stacks: bool = False) -> None:
        """End the watch; first take the stacks if ranks are silent so long that they may be why this stop comes.

        Args:
            manner: how the workers are stopped; a fence, or a stop for a dead agent, does not wait.
            takes_stacks: the head knows that ranks hang: take the stacks, whatever the heartbeats say.
        """
        if self._attempt and not manner.hardness and (takes_stacks or self._are_half_stalled()):
            began = self._loop.time()
            if not self._have_stacks:
                await self.take_stacks()
            if len(self._place.nodes) > 1:
                await asyncio.sleep(began + self._times.others_s - self._loop.time())
        self._orders = {}
        self._over.set()

    def _are_half_stalled(self) -> bool:
        """Return whether ranks have been silent for half of a bound."""
        stall_s, first_s = self._limits.stall_s, self._limits.first_s
        half = StallLimits(
            stall_s=None if stall_s is None else stall_s / 2, first_s=None if first_s is None else first_s / 2
        )
        return half.smallest_s is not None and bool(self._find(half))

    async def close(self) -> None:
        """End the watch at the end of this agent."""
        self._orders = {}
        self._over.set()
        await self._tasks.cancel()

    async def take_stacks(self, request: str = "") -> dict[int, str]:
        """Take the stacks of all workers that run, write them into the run directory, and return them by global rank.

        Args:
            request: whose request they answer, if it was one.
        """
        async with self._taking:
            attempt, running = self._attempt, self._running()
            sources = {rank: source for rank, source in self._heartbeats.stack_sources().items() if rank in running}
            taking = self._loop.run_in_executor(None, take_stacks, sources, self._marks)
            try:
                stacks = await asyncio.wait_for(taking, 2 * STACKS_WITHIN_S)
            except asyncio.TimeoutError:  # /proc itself may hang, where a process holds its memory's lock
                stacks = {}
            self._have_stacks = self._have_stacks or not request
            self.waiting = frozenset(rank for rank, text in stacks.items() if find_whereabouts(text).is_waiting)
            written = self._disk.call(lambda: self._write(attempt, stacks))
            with contextlib.suppress(asyncio.TimeoutError):  # a stop does not wait for a file system that hangs
                await asyncio.wait_for(asyncio.shield(written), STACKS_WITHIN_S)
            if stacks or request:
                groups = self._group(stacks)
                more = {"request": request, "ranks": sorted(stacks), "groups": groups}
                self._note(
                    Note(name="stacks.taken", message=groups or "no worker runs", attempt=attempt, metadata=more)
                )
            return stacks

    # Steps.

    @property
    def _attempt(self) -> int:
        return next((order.attempt for order in self._orders.values()), 0)

    async def _watch(self, smallest_s: float, attempt: int, over: asyncio.Event) -> None:
        every_s = min(self._times.look_every_s, smallest_s / 10)
        looked = self._loop.time()
        while self._attempt == attempt:
            await _pause(every_s, over)
            now = self._loop.time()
            if now - looked > 3 * every_s + 1.0:  # this agent was paused, and perhaps its workers with it
                self._since = now
            looked = now
            if self._attempt == attempt and (stalled := self._find(self._limits)):
                await self._stalled(attempt, stalled)
                return

    async def _watch_steps(self, attempt: int, over: asyncio.Event) -> None:
        """Record once a minute which ranks fall behind all others; that is no failure.

        The agent of rank 0 does it for all nodes: it reads their latest samples, of many nodes some each time.
        """
        turn = 0
        while self._attempt == attempt and 0 in self._orders:
            await _pause(self._times.compare_every_s, over)
            if self._attempt != attempt:
                return
            reading = self._disk.call(functools.partial(self._falling_behind, attempt, turn))
            behind = await reading
            turn += 1
            if behind and self._attempt == attempt:
                self._note(behind_note(behind, attempt))

    def _falling_behind(self, attempt: int, turn: int) -> tuple[SlowRank, ...]:
        """Return the ranks that fall behind, by the nodes' samples; blocks."""
        samples = latest_samples(self._layout, self._place.nodes, most=MOST_NODES, turn=turn)
        return falls_behind(find_pace(ranks_seen(samples, attempt, last=7)))

    def _find(self, limits: StallLimits) -> tuple[StalledRank, ...]:
        running = self._running()
        states = {rank: state for rank, state in self._heartbeats.read().items() if rank in running}
        return find_stalled(states, limits, watched_s=self._loop.time() - self._since)

    async def _stalled(self, attempt: int, stalled: Sequence[StalledRank]) -> None:
        stacks = await self.take_stacks()
        where = {rank.rank: find_whereabouts(stacks.get(rank.rank, "")) for rank in stalled}
        groups = self._group(stacks)
        self._say(f"{len(stalled)} of {len(self._orders)} ranks have stalled: {groups or 'no stacks'}")
        for rank in stalled:
            self._say(f"rank {rank.rank}: {rank.describe()}; it {where[rank.rank].describe()}")
        ranks = {str(rank.rank): rank.describe() for rank in stalled}
        self._note(Note(name="ranks.stalled", message=groups, attempt=attempt, metadata={"ranks": ranks}))
        world_size = max((int(order.environment.get("WORLD_SIZE", 0)) for order in self._orders.values()), default=0)
        if world_size != 1 and may_all_wait(where):
            await asyncio.sleep(self._times.hold_s)
        waiting = find_waiting(where, world_size)
        for rank in sorted(stalled, key=lambda rank: rank.rank in waiting):  # stable: those that stopped first
            if self._attempt == attempt:  # else a stop has begun
                await self._fail(rank, where[rank.rank], is_waiting=rank.rank in waiting)

    async def _fail(self, stalled: StalledRank, where: Whereabouts, *, is_waiting: bool) -> None:
        order, pid = self._orders[stalled.rank], self._running().get(stalled.rank)
        if pid is None:
            return
        failure_class = FailureClass.COLLECTIVE_TIMEOUT if is_waiting else FailureClass.STALLED
        failure = self._failure(stalled, where, order, pid, failure_class)
        written = self._disk.call(lambda: self._write_error(failure, order), is_urgent=True)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(written), STACKS_WITHIN_S)
        if self._role.restart == "ignore":  # nobody stops the role for it: its end by KILL is the failure
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        elif self._orders.get(stalled.rank) is order:
            self._report(failure)

    def _failure(
        self, stalled: StalledRank, where: Whereabouts, order: WorkerOrder, pid: int, failure_class: FailureClass
    ) -> FailureRecord:
        bound_s = self._limits.stall_s if stalled.has_begun else self._limits.first_s
        what = "no heartbeat within stall_timeout" if stalled.has_begun else "no first heartbeat within start_timeout"
        message = f"{what} ({bound_s:g} s): it {where.describe()}"
        return FailureRecord(
            rank=order.rank,
            local_rank=order.local_rank,
            role=self._role.name,
            node=self._place.node,
            attempt=order.attempt,
            pid=pid,
            exitcode=int(ExitCode.STALLED),  # the worker has none yet: it still runs
            signal_name=None,
            error_file=self._layout.error(order.attempt, order.rank),
            message=message,
            timestamp=time.time() - stalled.silent_s,
            failure_class=failure_class.value,
            frame=where.frame,
            detail=stalled.describe(),
        )

    def _write_error(self, failure: FailureRecord, order: WorkerOrder) -> None:
        """Write a stalled worker's error file; blocks. A failure that cannot be written is reported all the same."""
        stack = ""
        path = self._layout.stack(failure.attempt, failure.rank)
        with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
            stack = file.read()
        error = build_error(
            FailedWorker(
                rank=failure.rank,
                local_rank=failure.local_rank,
                pid=failure.pid,
                node=failure.node,
                attempt=failure.attempt,
            ),
            failure_class=cast(Any, failure.failure_class),
            message=failure.message,
            time_ns=int(failure.timestamp * 1e9),
            exit_code=failure.exitcode,
            callstack=stack,
            stderr_tail=order.stderr_tail(self._layout),
        )
        with contextlib.suppress(RunDirectoryError):
            write_json(failure.error_file, error)

    def _write(self, attempt: int, stacks: Mapping[int, str]) -> None:
        """Write the stacks, a file for each rank; blocks."""
        for rank, text in stacks.items():
            with contextlib.suppress(RunDirectoryError):
                make_directory(self._layout.rank(attempt, rank))
                write_bytes(self._layout.stack(attempt, rank), text.encode())

    def _group(self, stacks: Mapping[int, str]) -> str:
        return describe_groups(group_stacks(self._of_this_node(stacks)))

    def _of_this_node(self, stacks: Mapping[int, str]) -> Iterator[RankStack]:
        return (RankStack(rank=rank, node=self._place.node, text=text) for rank, text in stacks.items())


async def _pause(seconds: float, over: asyncio.Event) -> None:
    """Wait so long, or until the watch is over: a task a restart that sleeps on is memory in a run that crashes often.

    Args:
        seconds: how long.
        over: the end of the watch.
    """
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(over.wait(), seconds)


def behind_note(behind: Sequence[SlowRank], attempt: int) -> Note:
    """Return the event about ranks that fall behind."""
    first = behind[0]
    more = f"; {len(behind) - 1} more are slow" if len(behind) > 1 else ""
    return Note(
        name="ranks.slow",
        message=f"rank {first.rank} on {first.node} is {first.behind:g} steps behind the median and falls back{more}",
        attempt=attempt,
        metadata={
            "ranks": {str(rank.rank): round(rank.behind) for rank in behind},
            "nodes": {str(rank.rank): rank.node for rank in behind},
        },
    )
