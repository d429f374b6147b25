"""The relief of a first head that most nodes cannot reach."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from enum import Enum

from hpc_elastic.agent.rendezvous.candidacy import Candidacy
from hpc_elastic.agent.rendezvous.findings import Findings
from hpc_elastic.agent.rendezvous.search_times import SearchTimes
from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.errors import MissingNode, RendezvousCause, RunDirectoryError
from hpc_elastic.membership.actions import Level
from hpc_elastic.membership.gathering import can_relieve
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.rundir.records import AllocationClaim
from hpc_elastic.scheduler.allocation import Allocation

# The first nodes of the job, and as many spread over it, may take the place of a head out of reach: each of them reads
# what all others report. Of the racks that cannot reach the head one has such a node.
MOST_RELIEFS = 16


class Relief(Enum):
    """Who takes the place of a head that most nodes cannot reach."""

    OWN = "own"
    ANOTHER = "another"
    NONE = "none"


class HeadRelief:
    """What becomes of a head that this node has given up, because it cannot route to it.

    Theory of operation. This node may be broken itself, or the head is. If half of all nodes have given it up for that,
    which are enough for a world and each of its roles, and it has neither opened an attempt without them nor ended the
    run, one of them takes its place: once, for where no node reaches another, the next head would be as much alone.

    Args:
        plan: the launch plan.
        allocation: this node's place.
        head: the claim of that head, None if it is not known.
        candidacy: finds the claims of others, and makes this agent's.
        disk: the thread for the run directory.
        times: of the search.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        allocation: Allocation,
        head: AllocationClaim | None,
        candidacy: Candidacy,
        disk: BackgroundThread,
        times: SearchTimes,
    ) -> None:
        self._plan = plan
        self._allocation = allocation
        self._head = head
        self._candidacy = candidacy
        self._disk = disk
        self._times = times
        self._loop = asyncio.get_running_loop()
        self.successor: AllocationClaim | None = None  # who has taken that head's place, if another agent has

    async def seek(self, say: Callable[[str, Level], None]) -> Relief:
        """Takes the place of the head if it is the head that most nodes cannot reach, and returns who has it then.

        That head knows by now which nodes have given it up, and may go on without them, or end the run.
        """
        began = counted_at = self._loop.time()
        with contextlib.suppress(RunDirectoryError):  # the run is over
            while (now := self._loop.time()) < began + self._times.relieved_within_s:
                self.successor = await self._candidacy.find_successor(self._head, say)
                if self.successor is not None:
                    return Relief.ANOTHER
                records = await self._candidacy.read_records(say)
                if records.claim is not None or records.result is not None:
                    break
                is_due = now >= max(began + self._times.head_reacts_within_s, counted_at)
                if is_due and self._head is not None and await self._can_relieve(self._head):
                    if await self._candidacy.relieve(self._head, say):
                        return Relief.OWN
                elif is_due:
                    counted_at = now + self._times.counts_every_s
                await asyncio.sleep(self._times.read_claim_every_s)
        return Relief.NONE

    def describe(self, why: str) -> MissingNode:
        """Describes the head in whose place this node is; `why` this node cannot reach it follows this node's name."""
        assert self._head is not None
        detail = f"was the head, and cannot be reached: {self._allocation.node} {why}"
        return MissingNode(node=self._head.node, cause=RendezvousCause.CANNOT_ROUTE, detail=detail)

    async def _can_relieve(self, head: AllocationClaim) -> bool:
        """Returns whether enough nodes cannot reach the head, of which this node is one that may relieve it."""
        number, nodes = self._allocation.node_id, self._allocation.nodes
        may_relieve = number < MOST_RELIEFS or number % -(-len(nodes) // MOST_RELIEFS) == 0
        if head.relieves or not may_relieve:
            return False

        def count() -> bool:
            plan = self._plan
            placed, least = plan.placed_on(nodes), {role.name: role.nodes.min for role in plan.roles}
            unreached = [placed[node] for node in Findings(plan, self._allocation).cannot_reach(head.node)]
            return can_relieve(unreached, least, plan.nodes.min, len(nodes))

        return await self._disk.call(count)
