"""Drives the head machine on the node that is head: its connections, its disk work, its clock.

Theory of operation. The machine (`membership.head`) is called with what happened and returns actions.
Timers that are due are handled before any other event: a head that was paused must
know that its leases ran out before it acts on messages that came meanwhile. Only where it steps down they are not.
Once another head has taken the run over (`Superseded`), or this one is closed, every further event is ignored.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from hpc_elastic.agent.drivers.head_outputs import HeadOutputs
from hpc_elastic.agent.drivers.head_watch import WATCH_TIMES, Diagnose, HeadWatch, WatchTimes
from hpc_elastic.agent.drivers.job_clock import JobClock, TimeLeft
from hpc_elastic.agent.drivers.requeue import AllocationEnd
from hpc_elastic.agent.drivers.state_saves import StateSaves
from hpc_elastic.agent.net.transport import Connection
from hpc_elastic.agent.records.journal import Journal, stamp
from hpc_elastic.agent.records.requests import notice_in, operator_stop_in
from hpc_elastic.agent.records.retries import FOR_S, retry
from hpc_elastic.agent.records.telemetry import Telemetry
from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.agent.system.event_loop import rest_with
from hpc_elastic.agent.system.tasks import Tasks
from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.membership.actions import (
    Action,
    AskScheduler,
    ClaimAttempt,
    Drop,
    HeadOver,
    KeepStates,
    Level,
    Log,
    Note,
    SendToMember,
    Superseded,
    WriteResult,
)
from hpc_elastic.membership.admission import clock_news
from hpc_elastic.membership.head import Head
from hpc_elastic.membership.job_end import ASKING_NODES
from hpc_elastic.membership.members import drop
from hpc_elastic.membership.messages import (
    Broken,
    Dropped,
    Failed,
    Finished,
    Join,
    Message,
    Pinned,
    Saved,
    TakeStacks,
    Terminated,
)
from hpc_elastic.membership.notices import NoticeGiven
from hpc_elastic.rundir.allocation_ends import ASKED_AGAIN
from hpc_elastic.rundir.records import AttemptClaim, Request

T = TypeVar("T")
NEVER = float("inf")
SLURM = "slurm"  # who gives the notice that the batch script writes at its signal
HANGS_UP_WITHIN_S = 5.0  # a member that was told why: its machine may not answer any more


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorTimes:
    """How long a head waits for the scheduler and for the disk, in seconds.

    `scheduler_answers_within_s`: for the answer whether the job starts again; a part of the 30 s that Slurm gives a
    job between TERM and KILL (KillWait) by default. `asks_again_after_s`: before it asks again. `retries_for_s`:
    for a claim or a result that the file system refuses. `watch`: how often it looks into the run directory.
    """

    scheduler_answers_within_s: float = 10.0
    asks_again_after_s: float = 0.5
    retries_for_s: float = FOR_S
    watch: WatchTimes = WATCH_TIMES


COORDINATOR_TIMES = CoordinatorTimes()


class Coordinator:
    """The driver of a `Head`, and the receiver of the other agents' connections.

    Args:
        head: the machine.
        node: this node's name.
        journal: the run directory.
        disk: the thread for access to the run directory.
        telemetry: is told how long a claim took, and how the run ended.
        outputs: the callbacks to the agent around it.
        diagnose: finds out why nodes have not joined; blocks.
        times: how long it waits for the scheduler and for the disk.
        time_left: what this agent knows about the end of its job; None: nobody sees to the time.
        heard: returns the notice that this node's member has from an earlier head.
        drains: the requests to use nodes no more that were made before; the first attempt has to heed them.
        may_yield: whether this head may step down for another one of this start before the first attempt.
    """

    def __init__(
        self,
        head: Head,
        *,
        node: str,
        journal: Journal,
        disk: BackgroundThread,
        telemetry: Telemetry,
        outputs: HeadOutputs,
        diagnose: Diagnose = lambda _: (),
        times: CoordinatorTimes = COORDINATOR_TIMES,
        time_left: TimeLeft | None = None,
        heard: Callable[[], NoticeGiven | None] = lambda: None,
        drains: Iterable[Request] = (),
        may_yield: bool = True,
    ) -> None:
        self._head = head
        self._node = node
        self._journal = journal
        self._disk = disk
        self._telemetry = telemetry
        self._outputs = outputs
        self._times = times
        self._connections: dict[str, Connection] = {}
        self._joins: dict[Connection, Join] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = Tasks()
        self._judging: Counter[str] = Counter()  # by node, the number of failures that wait for the disk
        self._finished: dict[str, Finished] = {}  # by node, a message that waits for these failures
        self._is_closed = False
        self._is_settling = False  # whether `_settle` is scheduled
        self._own: Join | None = None
        self._has_checked_end = False
        self.over = asyncio.Event()
        self._watch = HeadWatch(
            head,
            node=node,
            do=self._do,
            step_down=self.step_down,
            journal=journal,
            disk=disk,
            diagnose=diagnose,
            ask=self._asked,
            heard=heard,
            may_yield=may_yield,
            reaches=outputs.reaches,
            times=times.watch,
        )
        say = partial(self._say, level="warning")
        self._saves = StateSaves(head, journal=journal, disk=disk, send=self._send, say=say)
        self._is_end_asked = False
        self._end = self._make_end(times, time_left)
        self._clock = None if time_left is None else self._make_clock(time_left)
        self._tasks.run(self._watch.watch_run())
        self._tasks.run(self._watch.watch_missing())
        for request in drains:
            self._asked(request)

    def _make_clock(self, time_left: TimeLeft) -> JobClock:
        clock = JobClock(
            time_left, self._head, do=self._do, journal=self._journal, say=self._say, stopping=self._end.stopping
        )
        self._tasks.run(clock.watch())
        return clock

    def _make_end(self, times: CoordinatorTimes, time_left: TimeLeft | None) -> AllocationEnd:
        return AllocationEnd(
            journal=self._journal,
            disk=self._disk,
            note=self._note,
            attempt=lambda: self._head.attempt,
            avoid=lambda: self._head.at_fault.to_avoid,
            is_fault_of_nodes=lambda: self._head.at_fault.are_why_too_few,
            charged=lambda: self._head.charged,
            charged_without_losses=lambda: self._head.charged_without_losses,
            is_stop_requested=lambda: self._watch.is_stop_requested,
            seconds_left=lambda: NEVER if time_left is None else time_left.left(self._loop.time()),
            answers_within_s=times.scheduler_answers_within_s,
            asks_again_after_s=times.asks_again_after_s,
        )

    def fence_deadline(self) -> float:
        """Returns until when this node's workers may run if the leases are not checked again."""
        return self._head.fence_deadline()

    def step_down(self, reason: str) -> None:
        """Ends this head because another agent is to be head, and tells all members.

        What is due is not done before: after a pause it could close the round, and claim an attempt or write a result.
        """
        if not self._is_closed:
            self._act_all(self._head.superseded(reason))
            self._settle_soon()

    # Implementation of transport.Receiver.

    def opened(self, connection: Connection) -> None:
        """Does nothing yet: an agent has connected, and its join comes next."""

    def received(self, connection: Connection, message: Message) -> None:
        """Handles a message of another agent; the first one has to be its join."""
        join = self._joins.get(connection)
        if join is not None:
            self._deliver(join.node, message)
        elif isinstance(message, Join):
            self._join(connection, message)
        else:
            connection.refuse("the first message was not a join")

    def closed(self, connection: Connection, why: str) -> None:
        """Tells the head that the member on this connection is lost, if it was a member's."""
        if (node := self._forget(connection)) is not None:
            self._do(lambda now: self._head.lost(node, why, now, is_gone=connection.is_closed_by_peer))

    # This node's own member.

    def received_from_own(self, message: Message) -> None:
        """Handles a message of this node's own member."""
        if isinstance(message, Join) and (refusal := self._head.refusal(message)) is not None:
            self._send(self._node, refusal)  # the member was lost, and joins again while the run ends
        elif isinstance(message, Join):
            self._own = message
            self._do(lambda now: self._head.joined(message, now))
        else:
            self._deliver(self._node, message)

    def own_member_left(self, why: str) -> None:
        """Tells the head that this node's member has left, without workers; it may join again."""
        self._do(lambda now: self._head.lost(self._node, why, now, is_gone=True))

    def abandon(self) -> None:
        """Closes all connections without a message, as when this process is killed."""
        self._is_closed = True
        for connection in tuple(self._joins):
            connection.abort("this agent goes")

    async def close(self) -> None:
        """Cancels the timer and all tasks, and closes the connections to members that did not close their own."""
        self._is_closed = True
        for connection in tuple(self._joins):
            connection.abort("this head is over")
        self._watch.close()
        if self._timer is not None:
            self._timer.cancel()
        rest_with(0)
        await self._saves.close()
        await self._tasks.cancel()

    # Steps.

    def _join(self, connection: Connection, join: Join) -> None:
        if self._is_overtaken(join):
            connection.close()
            return
        self._replace(join)
        refusal = self._head.refusal(join)
        if refusal is not None:
            self._say(f"refused {join.node}: {refusal.reason}", "warning")
            connection.send(refusal)
            connection.close()
            self._do(self._head.tick)  # there may be no node left to wait for
            return
        self._joins[connection] = join
        self._connections[join.node] = connection
        rest_with(len(self._connections))
        news = clock_news(join, time.time_ns(), self._head.attempt)
        self._do(lambda now: [*self._head.joined(join, now), *news])

    def _is_overtaken(self, join: Join) -> bool:
        """Returns whether the agent has given this join up: a later one of it was here first."""
        old = self._connections.get(join.node)
        return old is not None and self._joins[old].agent == join.agent and join.number < self._joins[old].number

    def _replace(self, join: Join) -> None:
        """Counts the old connection of an agent that joins again as lost; such an agent has no workers."""
        old = self._connections.get(join.node)
        if old is not None and self._joins[old].agent == join.agent:
            old.send(Dropped(reason="its agent has joined again"))  # if it has closed the new one meanwhile
            self._hang_up(old, "its agent has joined again")
            why = "its agent lost the connection, and joins again"
            self._do(lambda now: self._head.lost(join.node, why, now, is_gone=True, may_return=True))

    def _forget(self, connection: Connection) -> str | None:
        """Removes a connection; returns the node that it belonged to, None if it belonged to none any more."""
        join = self._joins.pop(connection, None)
        if join is None or self._connections.get(join.node) is not connection:  # another agent there has joined since
            return None
        del self._connections[join.node]
        rest_with(len(self._connections))
        return join.node

    def _hang_up(self, connection: Connection, why: str) -> None:
        """Closes a member's connection once its last messages are sent, or aborts it after `HANGS_UP_WITHIN_S`."""
        self._forget(connection)
        connection.close(why)
        self._loop.call_later(HANGS_UP_WITHIN_S, connection.abort, why)

    def _deliver(self, node: str, message: Message) -> None:
        if isinstance(message, (Pinned, Saved)):
            self._saves.received(node, message)
            return
        if isinstance(message, Terminated) and not self._is_end_asked:
            self._is_end_asked = True
            self._tasks.run(self._end.terminated())
        if isinstance(message, (Failed, Broken)) and self._journal.shows_progress:
            self._judging[node] += 1
            self._tasks.run(self._deliver_failure(node, message))
        elif isinstance(message, Finished) and self._judging[node]:
            self._finished[node] = message  # else the run could succeed before the head knows of the failure
        else:
            self._do(lambda now: self._head.received(node, message, now))

    async def _deliver_failure(self, node: str, message: Failed | Broken) -> None:
        """Passes a failure on to the head together with the progress that the run has made, read from disk first."""
        self._head.progress_seen(await self._disk.call(self._journal.progress, is_urgent=True))
        self._do(lambda now: self._head.received(node, message, now))
        self._judging[node] -= 1
        if not self._judging[node] and (finished := self._finished.pop(node, None)) is not None:
            self._deliver(node, finished)

    def _do(self, step: Callable[[float], list[Action]]) -> None:
        if self._is_closed:
            return
        now = self._loop.time()
        if self._timer is None or now >= self._timer.when():
            self._act_all(self._head.tick(now))
        self._act_all(step(now))
        self._settle_soon()

    def _settle_soon(self) -> None:
        if not self._is_settling:
            self._is_settling = True
            self._loop.call_soon(self._settle)

    def _settle(self) -> None:
        """Updates deadline and timer once after all events of one turn of the event loop, which may be thousands."""
        self._is_settling = False
        self._saves.look()
        self._outputs.moved()
        self._set_timer()

    def _act_all(self, actions: list[Action]) -> None:
        for action in actions:
            self._act(action)

    def _act(self, action: Action) -> None:
        if isinstance(action, SendToMember):
            self._send(action.node, action.message)
        elif isinstance(action, Drop):
            connection = self._connections.get(action.node)
            if connection is not None:
                self._hang_up(connection, "the head dropped the connection")
        elif isinstance(action, ClaimAttempt):
            self._outputs.claiming()
            self._check_end()
            self._tasks.run(self._claim(action))
        elif isinstance(action, WriteResult):
            self._outputs.claiming()
            self._tasks.run(self._write_result(action))
        elif isinstance(action, KeepStates):
            self._disk.best_effort(lambda: self._journal.keep_states(action.ended, action.latest))
        elif isinstance(action, AskScheduler):
            self._tasks.run(self._ask_scheduler(action.nodes))
        elif isinstance(action, Superseded):
            self._is_closed = True
            self.over.set()
            self._outputs.superseded(action.reason)
        elif isinstance(action, HeadOver):
            if action.have_all_left:
                self._disk.best_effort(self._journal.note_all_left)
            self._saves.run_ended()
            self._outputs.over(action)
            self.over.set()
        elif isinstance(action, (Log, Note)):
            self._tell(action)

    def _tell(self, action: Log | Note) -> None:
        if isinstance(action, Log):
            self._say(action.text, action.level)
        else:
            self._note(action)

    def _note(self, note: Note) -> None:
        moment = time.time_ns()
        self._disk.best_effort(lambda: self._journal.note(note, moment))

    def _check_end(self) -> None:
        """Warns once, at a claim, if no agent could end the job in place of the batch script."""
        joins = [*self._joins.values(), *([self._own] if self._own is not None else [])]
        have_asked = [join for join in joins if join.node_id in ASKING_NODES]
        is_known, self._has_checked_end = self._has_checked_end, True
        if is_known or not have_asked or any(join.can_end_job for join in have_asked):
            return
        if any(join.is_launch_host for join in joins):
            text = "no agent can reach Slurm's controller: if the node of the batch script is lost, and that stays so,"
            self._say(f"{text} somebody has to end the job with scancel when the run is over", "warning")

    def _send(self, node: str, message: Message) -> None:
        if node == self._node:
            self._loop.call_soon(self._outputs.to_own_member, message)
        elif (connection := self._connections.get(node)) is not None:
            connection.send(message)

    def _asked(self, request: Request) -> None:
        """Handles a request of a person: for stacks, which every agent takes, a save, a restart, a drain, or an end."""
        if request.kind == "stacks":
            for node in dict.fromkeys((*self._connections, self._node)):
                self._send(node, TakeStacks(request=request.id or ""))
        elif request.kind == "save":
            self._saves.asked(request)
        elif request.kind == "restart":
            self._do(lambda now: self._head.restart_requested(request.by, now))
        elif request.kind == "drain":
            self._do(lambda now: self._head.drain_requested(request.node or "", request.by, now))
        elif request.kind == "notice" and request.by == SLURM and self._clock is not None:
            self._clock.look_again()  # what its signal to the batch shell means, and when, is asked of Slurm
        elif request.kind == "notice":
            self._do(lambda now: self._head.notice_given(notice_in(request), now))
        elif request.kind == "stop":
            self._tasks.run(self._announce_stop(request))

    async def _announce_stop(self, request: Request) -> None:
        """Tells the workers of a stop, unless it is for a start of the job that there cannot be."""
        if request.requeue:
            refusal = await self._disk.call(lambda: self._journal.next_start.find_refusal(ASKED_AGAIN))
            if refusal:
                what = f"{request.by} asked for another start of the job, but"
                self._say(f"{what} {refusal}; nothing was done", "warning")
                return
        stop = operator_stop_in(request)
        self._do(lambda now: self._head.stop_announced(stop, now))

    async def _ask_scheduler(self, nodes: tuple[str, ...]) -> None:
        """Counts the nodes that the scheduler has given up as lost; it does not know whether their workers are dead."""
        why = "the scheduler has taken it out of the job"
        for node in await self._loop.run_in_executor(None, self._journal.dead_nodes, nodes):
            lost = partial(self._head.lost, node, why, is_gone=False)
            self._do(lambda now, lost=lost, node=node: [*lost(now), *drop(node, why)])  # type: ignore[misc]

    async def _claim(self, action: ClaimAttempt) -> None:
        attempt = action.claim.attempt
        claim = partial(self._journal.claim_attempt, stamp(action.claim), action.world)
        try:
            with self._telemetry.measuring("assign_worker_ranks"):
                is_ours, digest = await self._retry(lambda: self._disk.call(claim, is_urgent=True))
        except RunDirectoryError as error:
            self._disk_failed(error)
        else:
            self._do(lambda now: self._head.claimed(attempt, is_ours, digest, now))
            if is_ours:
                self._disk.best_effort(lambda: self._journal.write_budget(action.claim))

    async def _write_result(self, action: WriteResult) -> None:
        try:
            settled = await self._retry(lambda: self._end.settle(action.result))
            if isinstance(settled, tuple):
                exit_code, cause = settled
                within_s = self._end.flushes_within_s()
                self._do(lambda now: self._head.result_written(int(exit_code), cause, now, flushes_within_s=within_s))
                return
            answer = await self._retry(lambda: self._disk.call(lambda: self._journal.write_result(settled)))
        except RunDirectoryError as error:
            self._disk_failed(error)
            return
        if isinstance(answer, AttemptClaim):
            self.step_down(f"{answer.head} has opened attempt {answer.attempt}")
            return
        if isinstance(answer, int):
            self.step_down(f"the run goes on in allocation {answer}")
            return
        self._telemetry.run_ended(settled)
        self._do(lambda now: self._head.result_written(*answer, now))

    async def _retry(self, work: Callable[[], Awaitable[T]]) -> T:
        """Runs disk work that the run depends on, and retries it: one file system error does not end the run."""
        say = partial(self._say, level="warning")
        within_s = self._times.retries_for_s
        return await retry(work, say=say, is_wanted=lambda: not self._is_closed, within_s=within_s)

    def _disk_failed(self, error: RunDirectoryError) -> None:
        self._do(lambda now: self._head.disk_failed(str(error), now))

    def _say(self, text: str, level: Level = "info") -> None:
        self._disk.best_effort(lambda: self._journal.say(text, level))

    def _set_timer(self) -> None:
        if self._is_closed:
            return
        at = self._head.next_tick()
        if self._timer is not None:
            if self._timer.when() == at:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._do(lambda _: [])  # handles the timers that are due
