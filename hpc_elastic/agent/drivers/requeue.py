"""Finds out, when the scheduler stops a run, why it does and whether the job starts again; then no result is written.

Theory of operation. A stop from outside is told apart by what the scheduler says of the job, asked when the TERM
arrives and again when the workers are gone, and by the time left:

    the scheduler has counted another start            it requeues the job by itself: nothing to do
    the job has a time of preemption                   preempted
    a node of it failed, for which all of it ends      node loss
    its time was over, by the scheduler or our clock   time limit
    it runs, is cancelled or completes                 cancelled, as by scancel
    no answer                                          unknown: no result, and the job is neither ended nor requeued

After a preemption, at the time limit, and when too few nodes are left, or fit to take part, the job is started again
where `requeue` allows it. The reason is recorded first, in `requests.jsonl`; the agents leave with 75, and the batch
script asks Slurm for the requeue: it lives outside of the image where the agents are in one. A request of a person to
end the run goes before.

Where `requeue` does not allow it, the scheduler may have started the job again all the same, by itself or at somebody's
word, and its TERM may be late here, or never come. A result would end the run of that start. So the scheduler is asked
once before such a result, and one for want of nodes or for too many losses, is written; if it gives no answer, the
result is written. It is also asked before a start is asked for because nodes were lost: those that it has killed itself
are no losses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from hpc_elastic.agent.records.journal import Journal
from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.errors import ExitCode
from hpc_elastic.membership.actions import Note
from hpc_elastic.membership.decisions import Trigger
from hpc_elastic.membership.discovery import describe_left
from hpc_elastic.membership.requeue import CAUSES
from hpc_elastic.rundir.allocation_ends import ASKED_AGAIN, REQUEUED, describe_reason
from hpc_elastic.rundir.records import Charged, RunResultRecord, RunState
from hpc_elastic.scheduler.protocol import JobOutlook, JobState

TERMINATED = Trigger.TERMINATED.value
NODE_LOST = Trigger.NODE_LOST.value
FOR_WANT_OF_NODES = (Trigger.NODES_MISSING.value, "setup_failed")
NOT_IF_STARTED_AGAIN = (*FOR_WANT_OF_NODES, "node_losses_used_up")
NEAR_THE_END_S = 15.0  # a TERM so near the end of the job's time is that of the time limit
WRITES_AFTER_END_S = 20.0  # of the 30 s to the KILL (KillWait) by default; the script asks for the start in the others


class AllocationEnd:
    """Decides how an allocation ends that the scheduler stops.

    Args:
        journal: the run directory, and the scheduler.
        disk: the thread for access to the run directory.
        note: records an event.
        attempt: returns the number of the latest attempt.
        avoid: returns the nodes that another start of the job is to avoid.
        is_fault_of_nodes: returns whether nodes are missing by a fault of their own.
        charged: returns what the head has charged to the run's budgets.
        charged_without_losses: returns the same without the losses for which it ends the run.
        is_stop_requested: returns whether a person has asked for the end.
        seconds_left: returns the time that the job has left, as far as this agent knows.
        answers_within_s: for how long the scheduler is asked.
        asks_again_after_s: the pause between two questions.
    """

    def __init__(
        self,
        *,
        journal: Journal,
        disk: BackgroundThread,
        note: Callable[[Note], None],
        attempt: Callable[[], int],
        avoid: Callable[[], tuple[str, ...]],
        is_fault_of_nodes: Callable[[], bool],
        charged: Callable[[], Charged],
        charged_without_losses: Callable[[], Charged],
        is_stop_requested: Callable[[], bool],
        seconds_left: Callable[[], float],
        answers_within_s: float,
        asks_again_after_s: float,
    ) -> None:
        self._journal = journal
        self._disk = disk
        self._note = note
        self._attempt = attempt
        self._avoid = avoid
        self._is_fault_of_nodes = is_fault_of_nodes
        self._charged = charged
        self._charged_without_losses = charged_without_losses
        self._is_stop_requested = is_stop_requested
        self._seconds_left = seconds_left
        self._answers_within_s = answers_within_s
        self._asks_again_after_s = asks_again_after_s
        self._loop = asyncio.get_running_loop()
        self._seen: str | None = None  # the reason that was found when the TERM arrived
        self._has_said = False
        self._reservation = ""  # the one whose end is the job's time limit
        self._ends_at: float | None = None  # monotonic: when the scheduler ends the job, by its latest answer
        self._terminated_at: float | None = None
        self._is_started_again = False  # by the scheduler, without a request

    async def terminated(self) -> None:
        """Finds out why a TERM came from outside, while the workers still stop."""
        self._terminated_at = self._loop.time()
        outlook = await self._loop.run_in_executor(None, self._journal.next_start.outlook)
        found = None if outlook is None else self._reason_in(outlook)
        if found in (*CAUSES, REQUEUED):
            self._seen = found
        if not self._has_said:
            self._say_stopping(found)

    def stopping(self, reason: str, reservation: str = "") -> None:
        """Records that this agent's own clock stops the run, at the end of a reservation if one is named.

        Where a TERM has come before, the scheduler says what that means, and a job that a person has cancelled just
        before its time is over is not started again.
        """
        if self._terminated_at is not None:
            return
        self._reservation = reservation
        self._say_stopping(reason)

    def flushes_within_s(self) -> float | None:
        """Returns how long agents may write training states when they leave without a result.

        The script asks for another start when they have left, and it has to do so before the scheduler kills it. None:
        the scheduler starts the job again by itself.
        """
        if self._is_started_again:
            return None
        now = self._loop.time()
        ends_at = self._terminated_at if self._ends_at is None else self._ends_at
        left = min(self._seconds_left(), float("inf") if ends_at is None else ends_at - now)
        if left < WRITES_AFTER_END_S:
            left = min(WRITES_AFTER_END_S, left + WRITES_AFTER_END_S)
        return None if left == float("inf") else max(0.0, left)

    async def settle(self, result: RunResultRecord) -> RunResultRecord | tuple[ExitCode, str]:
        """Returns the result to write; or the exit code and the cause with which the agents leave without one."""
        if result.reason == TERMINATED:
            reason = await self._find_reason()
            if not self._has_said:  # the workers were gone before the scheduler had answered the first time
                self._say_stopping(reason)
            if reason is None and not self._is_stop_requested():
                return ExitCode.REQUEUE, "stopped by the scheduler, which does not say whether the job starts again"
            if reason == NODE_LOST:
                result = _ended_for_a_node(result)
        else:
            reason = result.reason if result.reason in CAUSES else None
            if result.reason in FOR_WANT_OF_NODES and self._is_fault_of_nodes():
                reason = NODE_LOST
            elif result.reason in FOR_WANT_OF_NODES and (left_for := await self._find_what_another_head_left_for()):
                return ExitCode.REQUEUE, describe_left(left_for)
            if reason == NODE_LOST and await self._has_another_head_lost_fewer():
                return ExitCode.REQUEUE, describe_left(NODE_LOST)
        if reason == REQUEUED:
            return self._requeued_by_scheduler()
        if reason in CAUSES and self._is_stop_requested():
            return replace(
                result,
                state=RunState.CANCELLED,
                exit_code=int(ExitCode.STOPPED),
                reason=Trigger.STOP_REQUESTED.value,
                cause=f"cancelled while the run was stopped because {self._describe(reason or '')}",
            )
        if reason in CAUSES:
            return await self._requeue(result, str(reason))
        is_asked = result.reason in NOT_IF_STARTED_AGAIN and not self._is_stop_requested()
        return self._requeued_by_scheduler() if is_asked and await self._has_started_again() else result

    async def _find_what_another_head_left_for(self) -> str:
        """Returns why another head of this start has left for the next; empty if none has, or a person ends the run.

        It was silent, or its nodes were cut off from these: a result would keep the run from going on then.
        """
        found = await self._disk.call(self._journal.what_another_head_left_for)
        return "" if self._is_stop_requested() else found

    async def _has_another_head_lost_fewer(self) -> bool:
        """Returns whether another head of this start has left for the next one with no more losses than counted here.

        It had the most nodes, or as many: what it has charged, and the nodes that it has named, are to stand, and the
        next start goes by the latest word.
        """
        theirs = await self._disk.call(self._journal.losses_another_head_left_with)
        return theirs is not None and theirs <= self._charged().spend.node_losses and not self._is_stop_requested()

    async def _find_reason(self) -> str | None:
        """Returns why the TERM came: a reason of `CAUSES`, REQUEUED, or TERMINATED; None if it stays unknown."""
        ends = self._loop.time() + self._answers_within_s
        while (outlook := await self._loop.run_in_executor(None, self._journal.next_start.outlook)) is None:
            if self._is_stop_requested():
                return None
            if self._loop.time() + self._asks_again_after_s >= ends:
                return self._seen
            await asyncio.sleep(self._asks_again_after_s)
        found = self._reason_in(outlook)
        return self._seen if found == TERMINATED and self._seen is not None else found

    def _reason_in(self, outlook: JobOutlook) -> str:
        # Nothing but a preemption grants a job any time between its TERM and the wait for the KILL.
        if outlook.is_preempted and outlook.state is JobState.RUNNING and outlook.seconds_left is not None:
            self._ends_at = self._loop.time() + outlook.seconds_left
        if outlook.restarts > self._journal.next_start.restart_count:
            return REQUEUED
        if outlook.is_preempted:
            return Trigger.PREEMPTED.value
        if outlook.has_lost_node:
            return NODE_LOST
        # A job that was cancelled by a person near its end is cancelled nevertheless.
        if outlook.is_out_of_time or (self._came_near_end() and outlook.state is not JobState.CANCELLED):
            return Trigger.TIME_LIMIT.value
        return TERMINATED

    def _came_near_end(self) -> bool:
        """Returns whether the TERM came as the job's time was nearly over, as far as this agent knows."""
        if self._terminated_at is None:
            return False
        return self._seconds_left() + self._loop.time() - self._terminated_at <= NEAR_THE_END_S

    async def _has_started_again(self) -> bool:
        """Returns whether the scheduler has counted another start of the job; it is asked once."""
        return await self._loop.run_in_executor(None, self._journal.next_start.is_requeued) is True

    def _requeued_by_scheduler(self) -> tuple[ExitCode, str]:
        self._is_started_again = True
        reason = self._seen if self._seen in CAUSES else REQUEUED
        charged = self._charged_without_losses()  # the scheduler has killed who is lost, perhaps
        self._disk.best_effort(lambda: self._journal.next_start.note(str(reason), charged=charged))
        return ExitCode.REQUEUE, "the scheduler has requeued the job; the run goes on when it starts again"

    async def _requeue(self, result: RunResultRecord, reason: str) -> RunResultRecord | tuple[ExitCode, str]:
        refusal = await self._disk.call(lambda: self._journal.next_start.find_refusal(reason))
        if refusal and self._journal.is_requeue_wanted and reason != ASKED_AGAIN:  # by a person, who was told so
            return await self._requeue(result, ASKED_AGAIN)
        if (refusal or reason == NODE_LOST) and await self._has_started_again():
            return self._requeued_by_scheduler()
        words = self._describe(reason)
        if refusal and reason == NODE_LOST:
            return result
        if refusal:
            cause = f"{words}; {refusal}"
            code = int(ExitCode.NODE_LOST)
            why = result.root_cause if result.root_cause is None else replace(result.root_cause, line=words)
            return replace(result, state=RunState.FAILED, exit_code=code, reason=reason, cause=cause, root_cause=why)
        if await self._disk.call(lambda: self._journal.goes_on_elsewhere(result.attempts)) is not None:
            return result  # whose writer finds the same, and steps down
        avoid, charged, reservation = self._avoid(), self._charged(), self._reservation
        note = self._journal.next_start.note
        await self._disk.call(lambda: note(reason, avoid, charged=charged, reservation=reservation))
        cause = result.cause if reason in (NODE_LOST, ASKED_AGAIN) else words
        return ExitCode.REQUEUE, f"{cause}; the job is started again, and the run goes on then"

    def _describe(self, reason: str) -> str:
        return describe_reason(reason, self._reservation)

    def _say_stopping(self, reason: str | None) -> None:
        self._has_said = True
        words = {None: "unknown", TERMINATED: "a TERM from outside"}.get(reason) or self._describe(str(reason))
        text = f"stopping: {words}"
        metadata = {"reason": reason or "unknown"}
        self._note(Note(name="run.stopping", message=text, attempt=self._attempt(), metadata=metadata))


def _ended_for_a_node(result: RunResultRecord) -> RunResultRecord:
    """Return the result of a job of which Slurm ends all nodes where one fails: an salloc without `--no-kill`."""
    cause = "a node of the job failed, and the scheduler ended all of the job for it"
    code = int(ExitCode.NODE_LOST)
    return replace(result, state=RunState.FAILED, exit_code=code, reason=NODE_LOST, cause=cause, root_cause=None)
