"""How an agent without a head claims to be head itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from hpc_elastic.agent.records.allocation_claims import PredecessorUnknownError
from hpc_elastic.agent.records.journal import Journal
from hpc_elastic.agent.records.retries import retry
from hpc_elastic.agent.rendezvous.search_times import SearchTimes
from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.errors import ExitCode, HpcElasticError
from hpc_elastic.membership.actions import Level
from hpc_elastic.membership.discovery import describe_left
from hpc_elastic.membership.succession import Records
from hpc_elastic.rundir.records import AllocationClaim, AttemptClaim, Candidate, Endpoint
from hpc_elastic.scheduler.allocation import Allocation

T = TypeVar("T")


class HeadLeftError(HpcElasticError):
    """The head has left before this agent joined it, and the run goes on in another start of the job. Exit code 75."""

    exit_code = ExitCode.REQUEUE


class Candidacy:
    """The claims of one allocation, as an agent that has no head finds them, and makes one of its own.

    Args:
        allocation: this agent's place in it.
        own: where this agent listens.
        journal: reads and writes the run directory.
        disk: the thread for that.
        times: of the search.
    """

    def __init__(
        self, allocation: Allocation, own: Endpoint, journal: Journal, disk: BackgroundThread, times: SearchTimes
    ) -> None:
        self._allocation = allocation
        self._own = own
        self._journal = journal
        self._disk = disk
        self._times = times
        self._loop = asyncio.get_running_loop()

    async def claim(self, say: Callable[[str, Level], None]) -> AllocationClaim | None:
        """Claims the allocation.

        Args:
            say: logs a line for people.

        Returns:
            None if this agent is the head now, else the claim of the agent that is.

        Raises:
            RunDirectoryError: the run is over, busy, or its directory cannot be written.
        """
        ends = self._loop.time() + self._times.scheduler_answers_within_s
        while True:
            try:
                claimed = await self._retry(lambda: self._journal.claim_allocation(self._own), say)
            except PredecessorUnknownError:
                if self._loop.time() + self._times.asks_again_after_s >= ends:
                    raise
                await asyncio.sleep(self._times.asks_again_after_s)  # a controller that is being restarted answers soon
            else:
                return None if claimed.is_ours else claimed.claim

    async def find_latest(self, say: Callable[[str, Level], None]) -> AllocationClaim | None:
        """Returns the latest claim of this start of the job, None if there is none."""
        return await self._retry(self._journal.find_allocation, say)

    async def find_others(
        self, head: AllocationClaim, attempt: AttemptClaim | None, say: Callable[[str, Level], None]
    ) -> list[Candidate]:
        """Returns the agents that may be head in the place of one that does not answer.

        Before the first attempt these are the heads of earlier claims of this start of the job; then those that may
        take the place of the attempt's head, one of which may gather the others.
        """
        if attempt is not None and attempt.candidates is not None:
            others = [*attempt.candidates.turns, *attempt.candidates.spares]
        else:
            claims = await self._retry(self._journal.find_heads, say)
            others = [Candidate(node=each.node, agent=each.head) for each in claims]
        return [each for each in others if each.node not in (head.node, self._allocation.node)]

    async def find_successor(
        self, head: AllocationClaim | None, say: Callable[[str, Level], None]
    ) -> AllocationClaim | None:
        """Returns the latest claim if another agent has made it since this head was asked, else None.

        Args:
            head: the claim of the head that was asked; None: the agent of the first node was.
            say: logs a line for people.
        """
        latest = await self.find_latest(say)
        if latest is None:
            return None
        is_old = latest.node == self._allocation.nodes[0] if head is None else latest.head == head.head
        return None if is_old else latest

    async def read_records(self, say: Callable[[str, Level], None]) -> Records:
        """Returns what the run directory says, if the head has not left for another start of the job.

        Raises:
            HeadLeftError: it has.
        """
        records = await self._retry(partial(self._journal.read_records, needs_world=False), say)
        if records.left_for:
            raise HeadLeftError(describe_left(records.left_for))
        return records

    async def succeed(self, head: AllocationClaim | None, say: Callable[[str, Level], None]) -> bool:
        """Claims the next allocation if the head of this one is silent and opened no attempt; returns whether it did.

        If that head is alive after all, behind a firewall, this claim has no effect: an attempt that it opens counts.

        Args:
            head: the claim of the head that was asked; a later one may have followed it.
            say: logs a line for people.
        """
        return head is not None and await self._claim_next(head, say, "does not answer", is_latest=False)

    async def succeed_failed(self, head: AllocationClaim, say: Callable[[str, Level], None]) -> bool:
        """Does the same for a head whose agent has recorded that it failed, if its claim is the latest one still."""
        return await self._claim_next(head, say, "has failed")

    async def relieve(self, head: AllocationClaim, say: Callable[[str, Level], None]) -> bool:
        """Does the same for a head that most nodes cannot reach, if its claim is the latest one still."""
        return await self._claim_next(head, say, "cannot be reached by most nodes", relieves=head.node)

    async def _claim_next(
        self,
        head: AllocationClaim,
        say: Callable[[str, Level], None],
        why: str,
        *,
        is_latest: bool = True,
        relieves: str = "",
    ) -> bool:
        records = await self.read_records(say)
        if records.first is None or records.claim is not None or records.result is not None:
            return False
        after = records.first.allocation
        if is_latest and after != head.allocation:
            return False
        claim = partial(self._journal.claim_next_allocation, self._own, after, relieves=relieves)
        is_ours = await self._retry(claim, say)
        if is_ours:
            say(f"{head.node} has opened no attempt and {why}, so this node is the head now", "warning")
        return is_ours

    async def _retry(self, work: Callable[[], T], say: Callable[[str, Level], None]) -> T:
        return await retry(lambda: self._disk.call(work), say=lambda text: say(text, "warning"))
