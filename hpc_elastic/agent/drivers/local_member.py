"""Drives this node's member machine: reports events of this node to it and carries out its decisions.

Theory of operation. The machine (`membership.member`) is called with what happened and returns actions.
Timers that are due are always handled before any other event: an agent that was paused must
know that its lease ran out before it acts on messages that came meanwhile.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hpc_elastic.agent.records.journal import Journal
from hpc_elastic.agent.records.retries import retry
from hpc_elastic.agent.records.telemetry import Telemetry
from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.agent.system.tasks import Tasks
from hpc_elastic.agent.workers.circumstances import Circumstances
from hpc_elastic.agent.workers.error_files import set_aside_error, settle_error_file
from hpc_elastic.agent.workers.failures import record_failure
from hpc_elastic.agent.workers.flight_records import keep_flight_records
from hpc_elastic.agent.workers.node_workers import NodeWorkers, TermWatch
from hpc_elastic.agent.workers.rank_states import StateNotHereError
from hpc_elastic.agent.workers.spawn import StartFailedError, WorkerOrder
from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.failures.classes import FailureClass
from hpc_elastic.failures.classify import find_exit_inside
from hpc_elastic.membership.actions import (
    Action,
    DiscoverHead,
    HoldForNotice,
    Leave,
    Level,
    Log,
    NameNotice,
    Note,
    RecordFailure,
    SendToHead,
    StartWorkers,
    StopWorkers,
    WriteNodeResult,
)
from hpc_elastic.membership.member import Member, MemberPhase
from hpc_elastic.membership.messages import Join, Message, PinState, SaveState, StopManner, TakeStacks, UnpinState
from hpc_elastic.membership.reports import describe_assign
from hpc_elastic.membership.succession import LostHead
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import FailureRecord, NodeResult, WorkerState
from hpc_elastic.scheduler.allocation import Allocation

NEVER = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberOutputs:
    """The callbacks with which a member asks the agent around it for what does not concern workers.

    Args:
        tell: sends a message to the head, if there is one.
        discover_head: looks for another head; is called when no worker is left.
        leave: ends this agent.
        moved: is called when the time until which the workers may run may have changed.
        guard_deadline: returns when the guard kills the workers.
        runs_until: returns until when the workers may run, as the guard was told last, without its own delay.
        say: logs a line for people.
    """

    tell: Callable[[Message], None]
    discover_head: Callable[[LostHead], None]
    leave: Callable[[Leave], None]
    moved: Callable[[], None]
    guard_deadline: Callable[[], float]
    runs_until: Callable[[], float]
    say: Callable[[str, Level], None]


Examine = Callable[[], Awaitable[str | None]]  # runs the health checks; returns what they found, None if nothing
LOOKS_WITHIN_S = 2.0  # for the last output of stopped workers, where the file system is slow
EXAMINES_AGAIN_S = 60.0  # an unhealthy node, which may get well: a disk is cleared, a file server is back
# What ends a worker of a node that may be at fault itself.
SUSPECT_CLASSES = frozenset(
    {
        FailureClass.BUS_ERROR.value,
        FailureClass.SHARED_MEMORY_FULL.value,
        FailureClass.STALLED.value,
        FailureClass.UNKILLABLE.value,
        FailureClass.DISK_FULL.value,
        FailureClass.FILE_SYSTEM.value,
        FailureClass.CUDA_HARDWARE.value,
        FailureClass.CUDA_NO_DEVICE.value,
        FailureClass.CUDA_ERROR.value,
        FailureClass.START_FAILED.value,
    }
)


class LocalMember:
    """The driver of a `Member` and of this node's workers.

    Args:
        member: the machine.
        plan: the launch plan.
        place: this node's place.
        journal: the run directory.
        disk: the thread for access to the run directory.
        telemetry: is shown every action.
        outputs: carries out the actions that are not about workers.
    """

    def __init__(
        self,
        member: Member,
        *,
        plan: LaunchPlan,
        place: Allocation,
        journal: Journal,
        disk: BackgroundThread,
        telemetry: Telemetry,
        outputs: MemberOutputs,
    ) -> None:
        self._member = member
        self._plan = plan
        self._place = place
        self._journal = journal
        self._disk = disk
        self._telemetry = telemetry
        self._outputs = outputs
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()
        self._recording = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._stopping: StopWorkers | None = None
        self._fenced_by = NEVER  # when the fence under way began, or the lease was over; NEVER if none is
        self._examine: Examine | None = None
        self._is_suspect: bool  # whether a failure of this attempt may be the node's own; set as its workers start
        self._recording_failures: set[asyncio.Task[None]] = set()
        self._is_fenced = asyncio.Event()  # nothing may hold up the stop that is under way
        self.stacks_asked: Callable[[str], object] = lambda _: None  # takes the stacks for the request with this id
        self.save_asked: Callable[[PinState | SaveState | UnpinState], None] = lambda _: None  # pins and writes states
        self.furthest_step: Callable[[], int | None] = lambda: None  # that a heartbeat of the latest attempt named
        self.waiting_ranks: Callable[[], Collection[int]] = tuple  # global ranks, by the stacks taken at a stop
        self.paused_ranks: Callable[[], Collection[int]] = tuple  # global ranks that stood still when a stop began

    def serve(self, group: NodeWorkers, signals: TermWatch, circumstances: Circumstances | None = None) -> None:
        """Sets the workers, and the watch that knows whether they got a TERM; call it before there is a head.

        Args:
            group: the node's workers.
            signals: the watch.
            circumstances: what the node says around the end of a worker; None: it is not asked.
        """
        self._group = group
        self._signals = signals
        self._circumstances = circumstances

    def watch_health(self, examine: Examine) -> None:
        """Sets the node's health checks, which run again when the node may be at fault, and while it is unhealthy."""
        self._examine = examine
        self._tasks.run(self._examine_again_and_again())

    @property
    def join(self) -> Join:
        """The join message of this node, as it was last sent to a head."""
        return self._member.join

    def asks(self) -> Join:
        """Returns the join message for the next agent that is asked to be the head, with a new number."""
        return self._member.asks()

    def fence_deadline(self) -> float:
        """Returns until when the workers may run without news from the head; not beyond the begin of a fence."""
        return min(self._member.fence_deadline(), self._fenced_by)

    async def close(self) -> None:
        """Cancels what is under way, but first waits for a record that is still being written or retried."""
        if self._timer is not None:
            self._timer.cancel()
        async with self._recording:
            pass
        await self._tasks.cancel()

    # Events from the head.

    def connected(self, *, is_joined: bool, asked: float | None = None) -> None:
        """Tells the member that there is a head: a remote one that was asked to join at `asked`, or the local one."""
        self._do(lambda now: self._member.connected(now, is_joined=is_joined, asked=asked))

    def received(self, message: Message) -> None:
        """Passes a message of the head on to the member, unless it is about stacks or a save: it need not know."""
        if isinstance(message, TakeStacks):
            self.stacks_asked(message.request)
            return
        if isinstance(message, (PinState, SaveState, UnpinState)):
            self.save_asked(message)
            return
        self._do(lambda now: self._member.received(message, now))

    def answer(self, message: Message) -> None:
        """Sends the head what is no part of membership; nothing happens if there is none."""
        self._outputs.tell(message)

    def disconnected(self, why: str, *, is_dead: bool) -> None:
        """Tells the member that its head is lost; `is_dead` if that head's agent is known to be dead."""
        self._do(lambda now: self._member.disconnected(why, is_dead=is_dead, now=now))
        is_leaving = self._member.phase is MemberPhase.LEAVING
        if (
            not (is_dead or is_leaving) and self._examine is not None
        ):  # perhaps this node was cut off, for reasons of its own
            self._tasks.run(self._examine_now())

    def leaves(self, exit_code: int, cause: str, *, ends_job: bool = False) -> None:
        """Tells the member to leave: no head was found, or the run is over; `ends_job`: this agent ends the job."""
        self._do(lambda _: self._member.leaves(exit_code, cause, ends_job=ends_job))

    # Events of this node.

    def worker_exited(self, attempt: int, local_rank: int, exitcode: int, *, is_after_stop: bool = False) -> None:
        """Tells the member that a worker has ended, and whether it was after the TERM of a stop."""
        exited = {"local_rank": local_rank, "exitcode": exitcode}
        message = f"local rank {local_rank} ended"
        self._note(Note(name="worker.exited", message=message, attempt=attempt, metadata=exited))
        if exitcode == -signal.SIGKILL and self._loop.time() >= self._outputs.guard_deadline():
            self._do(lambda _: [])  # the guard killed it, so the worker has not failed
        else:
            self._do(
                lambda now: self._member.worker_exited(attempt, local_rank, exitcode, now, is_after_stop=is_after_stop)
            )

    def worker_stalled(self, failure: FailureRecord) -> None:
        """Tells the member that a worker which still runs has stalled, once its error file is written."""
        self._is_suspect = True
        self._do(lambda _: self._member.failure_recorded(failure))

    def node_broke(self, reason: str) -> None:
        """Tells the member that the attempt cannot go on here although no worker has failed."""
        self._is_suspect = True
        self._do(lambda _: self._member.node_broke(reason))

    def got_signal(self, name: str, have_workers: bool) -> None:
        """Tells the member that a signal from outside ends this agent; `have_workers`: perhaps they got it, too."""
        is_leaving = self._member.phase is MemberPhase.LEAVING  # and perhaps writes a training state
        if self._place.is_local and (is_leaving or self._is_stop_of_a_person()):
            self._group.hurry()  # a person who asked for the stop in another way asks again
        self._do(lambda now: self._member.terminated(name, now, have_workers=have_workers))

    def _is_stop_of_a_person(self) -> bool:
        """Returns whether a graceful stop is under way that was not caused by a TERM which this agent gets too."""
        stop = self._stopping
        return stop is not None and stop.manner is StopManner.GRACE and not stop.is_term_coming

    # Steps.

    def _do(self, step: Callable[[float], list[Action]]) -> None:
        now = self._loop.time()
        if self._timer is None or now >= self._timer.when():
            self._act_all(self._member.tick(now))
        self._act_all(step(now))
        self._outputs.moved()
        self._set_timer()

    def _set_timer(self) -> None:
        at = self._member.next_tick()
        if self._timer is not None:
            if self._timer.when() == at:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._tick) if at < NEVER else None

    def _tick(self) -> None:
        self._timer = None
        self._do(lambda _: [])

    def _act_all(self, actions: list[Action]) -> None:
        for action in actions:
            self._act(action)

    def _act(self, action: Action) -> None:
        self._telemetry.saw(action)
        if isinstance(action, SendToHead):
            self._outputs.tell(action.message)
        elif isinstance(action, StartWorkers):
            self._outputs.say(describe_assign(action.assign), "debug")
            self._tasks.run(self._initialize_workers(action))
        elif isinstance(action, StopWorkers):
            self._stop_workers(action)
        elif isinstance(action, HoldForNotice):
            self._tasks.run(self._hold_for_notice(action))
        elif isinstance(action, NameNotice):
            self._group.name_notice(action.attempt, action.first)
        elif isinstance(action, RecordFailure):
            recording = self._tasks.run(self._record_failure(action))
            self._recording_failures.add(recording)
            recording.add_done_callback(self._recording_failures.discard)
        elif isinstance(action, WriteNodeResult):
            self._tasks.run(self._write_node_result(action))
        elif isinstance(action, DiscoverHead):
            self._outputs.discover_head(action.lost)
        elif isinstance(action, Log):
            self._outputs.say(action.text, action.level)
        elif isinstance(action, Note):
            self._note(action)
        elif isinstance(action, Leave):
            self._outputs.leave(action)

    def _note(self, note: Note) -> None:
        moment = time.time_ns()
        self._disk.best_effort(lambda: self._journal.note(note, moment))

    async def _initialize_workers(self, action: StartWorkers) -> None:
        attempt = action.assign.attempt
        self._is_suspect = False
        if self._circumstances is not None:
            self._circumstances.mark()
        try:
            await self._group.initialize_workers(action.assign)
        except StartFailedError as error:
            for order in self._group.orders():
                await self._record(order, pid=0, exitcode=1, ended_at=self._loop.time(), message=str(error))
        except StateNotHereError as missing:
            reason = str(missing)
            self._do(lambda _: self._member.node_broke(reason, action.assign.state))
        else:
            how = {"start": self._group.start_method}
            message = f"{self.join.workers} workers"
            self._note(Note(name="workers.started", message=message, attempt=attempt, metadata=how))
            self._do(lambda _: self._member.workers_started(attempt, self._group.pids()))

    async def _hold_for_notice(self, action: HoldForNotice) -> None:
        made = await self._group.hold_for_notice(action.attempt, action.notice)
        self._do(lambda _: self._member.polls_counted(action.attempt, made))

    def _stop_workers(self, action: StopWorkers) -> None:
        if action.manner is StopManner.FENCE:
            # Never later than it was: a start that stood still amid its workers goes on beside this, and looks at it.
            self._fenced_by = min(self._loop.time(), self._outputs.runs_until())
            self._is_fenced.set()
        if self._stopping is not None:
            if action.manner.hardness:
                self._group.hurry(spares_savers=action.manner is StopManner.LOSS)
            return
        self._stopping = action
        self._tasks.run(self._stop(action))

    async def _stop(self, action: StopWorkers) -> None:
        try:
            is_terminated = (action.is_terminated or action.is_term_coming) and await self._is_term_here(action.manner)
            unkillable = await self._group.stop_workers(
                action.manner, is_terminated=is_terminated, takes_stacks=action.takes_stacks
            )
            if action.manner is StopManner.RESTART:
                await self._find_failed_inside()
                # These records say whether the node may be at fault.
                await self._unless_fenced(self._tasks.run(self._finish_records()))
            if self._is_suspect and action.manner is StopManner.RESTART:
                # The head waits for the answer to this stop, and leaves the node out if the checks find something.
                await self._unless_fenced(self._tasks.run(self._examine_now()))
            is_quick = action.is_terminated or is_terminated  # there may be no time to read them twice
            held = await self._group.held_states(is_quick=is_quick)
        finally:
            self._stopping = None
            self._is_fenced.clear()
        self._fenced_by = NEVER
        port, step = self._group.store_port, self.furthest_step()
        waiting, paused = self.waiting_ranks(), self.paused_ranks()
        self._do(lambda _: self._member.workers_stopped(action.attempt, unkillable, port, step, waiting, held, paused))

    async def _unless_fenced(self, work: asyncio.Future[Any], *, within_s: float | None = None) -> None:
        """Waits for work that a stop needs, but for no longer than until a fence, beside which the work goes on."""
        fenced = asyncio.ensure_future(self._is_fenced.wait())
        await asyncio.wait([work, fenced], timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        fenced.cancel()

    async def _is_term_here(self, manner: StopManner) -> bool:
        """Returns whether the workers got a TERM from outside; what kills them anyway does not wait for the answer."""
        if manner.hardness:
            return False
        watching = asyncio.ensure_future(self._signals.is_term_here())
        await self._unless_fenced(watching)
        is_here = watching.done() and watching.result()
        watching.cancel()
        return is_here

    async def _find_failed_inside(self) -> None:
        """Report each worker that the stop ended as failed whose program had failed before: it was a wrapper only.

        What the program wrote is read once no worker is left, and a fence does not wait for it.
        """
        layout, stopped = RunLayout(self._plan.run_dir), self._group.ended_by_stop()

        def find() -> list[tuple[WorkerOrder, int]]:
            found = ((order, find_exit_inside(order.stderr_tail(layout))) for order in stopped)
            return [(order, code) for order, code in found if code is not None]

        if not stopped:
            return
        looking: asyncio.Future[list[tuple[WorkerOrder, int]]] = self._disk.call(find, is_urgent=True)
        await self._unless_fenced(looking, within_s=LOOKS_WITHIN_S)
        for order, code in looking.result() if looking.done() else []:
            self.worker_exited(order.attempt, order.local_rank, code, is_after_stop=True)

    async def _examine_now(self) -> None:
        """Runs the health checks and tells the member what they found."""
        if self._examine is not None:
            problem = await self._examine()
            self._do(lambda _: self._member.examined(problem))

    async def _finish_records(self) -> None:
        """Waits for the records of failures that are being written."""
        if self._recording_failures:
            await asyncio.wait(self._recording_failures)

    async def _examine_again_and_again(self) -> None:
        while True:
            await asyncio.sleep(EXAMINES_AGAIN_S)
            if self.join.unhealthy is not None:
                await self._examine_now()

    async def _record_failure(self, action: RecordFailure) -> None:
        order, pid = self._group.order_of(action.local_rank)
        ended_at, stopped = action.ended_at, action.is_after_stop
        await self._record(order, pid=pid, exitcode=action.exitcode, ended_at=ended_at, is_after_stop=stopped)

    async def _record(
        self,
        order: WorkerOrder,
        *,
        pid: int,
        exitcode: int,
        ended_at: float,
        message: str = "",
        is_after_stop: bool = False,
    ) -> None:
        timestamp = time.time() - (self._loop.time() - ended_at)  # not that of the record, for which others wait
        layout, node, role = RunLayout(self._plan.run_dir), self._place.node, self.join.role
        failing = self._group.failing_word(order.local_rank)

        def record() -> FailureRecord | None:
            has_failed = settle_error_file(
                layout, order, pid=pid, exitcode=exitcode, failing=failing, is_after_stop=is_after_stop
            )
            if not has_failed:
                return None
            return record_failure(
                layout,
                order,
                node=node,
                role=role,
                pid=pid,
                exitcode=exitcode,
                timestamp=timestamp,
                message=message,
                is_after_stop=is_after_stop,
                circumstances=self._circumstances,
            )

        failure = await self._disk.call(record, is_urgent=True)
        self._is_suspect |= failure is not None and failure.failure_class in SUSPECT_CLASSES
        if failure is None:
            self._do(lambda _: self._member.ended_by_stop(order.attempt, order.local_rank))
        else:
            self._do(lambda _: self._member.failure_recorded(failure))

    async def _write_node_result(self, action: WriteNodeResult) -> None:
        started = self._group.started
        orders = [order for order in self._group.orders() if order.attempt == action.result.attempt]
        write = partial(self._write_result_of_node, action.result, started, orders)
        async with self._recording:  # so that a retry of an older record does not overwrite a newer one
            try:
                await retry(lambda: self._disk.call(write), say=self._warn)
            except RunDirectoryError as error:  # the head is told how the workers ended, and has a record of its own
                self._warn(f"{error.message}; this node's record of attempt {action.result.attempt} is missing")
        is_of_now = action.result.attempt == self._member.attempt and self._member.phase is MemberPhase.WORKING
        is_for_later = action.result.state is WorkerState.STOPPED and is_of_now  # else the next attempt's ranks save
        held = await self._group.held_states() if is_for_later else ()
        self._do(lambda _: self._member.node_result_written(action.result, held))

    def _write_result_of_node(self, result: NodeResult, started: float, orders: Sequence[WorkerOrder]) -> None:
        self._journal.write_node_result(result, started=started)
        if result.state in (WorkerState.FAILED, WorkerState.STOPPED):
            keep_flight_records(RunLayout(self._plan.run_dir), orders, started)
        if result.state is WorkerState.SUCCEEDED:
            for rank in result.ranks:  # a child may have written to the error file of a rank that went on
                set_aside_error(RunLayout(self._plan.run_dir), result.attempt, rank)

    def _warn(self, text: str) -> None:
        self._outputs.say(text, "warning")
