"""Finds the head of this allocation, or becomes it by claiming the allocation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from hpc_elastic.agent.allocation import Allocation
from hpc_elastic.agent.background import BackgroundThread
from hpc_elastic.agent.journal import Journal
from hpc_elastic.agent.network import resolve_node
from hpc_elastic.agent.transport import Connection, ConnectionFactory, Receiver, dial
from hpc_elastic.errors import ExitCode, HpcElasticError
from hpc_elastic.membership.messages import Join, Message, Refused, Welcome
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.rundir.records import AllocationClaim, Endpoint

CLAIM_AFTER_S = 20.0  # node k claims the allocation when no head has shown for so long, and k * CLAIM_STEP_S
CLAIM_STEP_S = 5.0
READ_CLAIM_EVERY_S = 2.0
CONNECT_BOUND_S = 2.0
ANSWER_BOUND_S = 5.0
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0
HEAD_ANSWERS_WITHIN_S = 30.0  # a head listens before it claims: one that does not answer for so long is gone


class NoHeadError(HpcElasticError):
    """The head of this allocation cannot be reached. Exit code 7."""

    exit_code = ExitCode.NODE_LOST


class HeadListener(Protocol):
    """Who hears what the head says, once it has answered the join."""

    def head_found(self, connection: Connection) -> None:
        """A head answered the join on this connection; what it says comes next."""

    def head_said(self, message: Message) -> None:
        """A message of the head."""

    def head_lost(self, why: str) -> None:
        """The connection to the head is over."""


class HeadLink(Receiver):
    """A connection that is the head's as soon as the join is answered on it."""

    def __init__(self, listener: HeadListener) -> None:
        self._listener = listener
        self.answered: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def give_up(self, connection: Connection) -> None:
        """Closes the connection if the join was not answered yet."""
        if not self.answered.done():
            connection.abort("no answer to the join")

    def opened(self, connection: Connection) -> None:
        """Of transport.Receiver."""

    def received(self, connection: Connection, message: Message) -> None:
        """Of transport.Receiver: the first message must be an answer to the join."""
        if not self.answered.done():
            if not isinstance(message, (Welcome, Refused)):
                connection.abort("the other side is no head")
                return
            self.answered.set_result(True)
            self._listener.head_found(connection)
        self._listener.head_said(message)

    def closed(self, connection: Connection, why: str) -> None:  # noqa: ARG002, the protocol's signature
        """Of transport.Receiver."""
        if not self.answered.done():
            self.answered.set_result(False)
        else:
            self._listener.head_lost(why)


class HeadSearch:
    """One agent's search.

    Theory of operation. Node 0 claims the allocation at once, with its address. The others dial
    node 0 by its name along the port sequence that all nodes derive, and look for the claim
    meanwhile, which has the address for sure. A wrong guess is harmless: whoever answers must know
    the run's secret, and be head. If no head shows, node k claims the allocation after
    20 + 5k seconds; of all who try one succeeds, and its claim tells the others.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        allocation: Allocation,
        *,
        ports: list[int],
        own: Endpoint,
        journal: Journal,
        disk: BackgroundThread,
        make: ConnectionFactory,
    ) -> None:
        self._plan = plan
        self._allocation = allocation
        self._ports = ports
        self._own = own
        self._journal = journal
        self._disk = disk
        self._make = make

    async def claim(self) -> AllocationClaim | None:
        """Claims the allocation.

        Returns:
            None if this agent is the head now, else the claim of the agent that is.

        Raises:
            RunDirectoryError: the run is over, busy, or its directory cannot be written.
        """
        claimed = await self._disk.call(lambda: self._journal.claim_allocation(self._own))
        return None if claimed.is_ours else claimed.claim

    async def find(self, join: Join, listener: HeadListener, say: Callable[[str], None]) -> bool:
        """Joins the head, whoever it is.

        Returns:
            Whether that is another agent; else this one has claimed the allocation, and is the head.

        Raises:
            RunDirectoryError: the run is over or busy.
            NoHeadError: somebody claimed the allocation and does not answer.
        """
        known: AllocationClaim | None = None
        if self._allocation.node_id == 0 and (known := await self.claim()) is None:
            return False
        loop = asyncio.get_running_loop()
        give_up_at = float("inf")
        claim_at = loop.time() + CLAIM_AFTER_S + CLAIM_STEP_S * self._allocation.node_id
        read_at, pause, tries = loop.time() + READ_CLAIM_EVERY_S, FIRST_PAUSE_S, 0
        addresses = await self._resolve()
        while True:
            for address, port in self._candidates(known, addresses, tries):
                if await self._try(address, port, join, listener):
                    return True
            tries += 1
            if known is not None:
                give_up_at = min(give_up_at, loop.time() + HEAD_ANSWERS_WITHIN_S)
            if loop.time() >= give_up_at and known is not None:
                raise NoHeadError(f"{known.node} claimed allocation {known.allocation} and is no head that answers")
            if loop.time() >= claim_at:
                if (known := await self.claim()) is None:
                    say("no head showed, so this node is the head now")
                    return False
                claim_at = float("inf")
            elif loop.time() >= read_at:
                known = await self._disk.call(self._journal.find_allocation) or known
                read_at = loop.time() + READ_CLAIM_EVERY_S
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE_S, pause * 1.5)

    async def _resolve(self) -> list[str]:
        allocation = self._allocation
        if allocation.is_local:
            return [allocation.local_address(0)]
        return await self._disk.call(lambda: resolve_node(allocation.nodes[0], self._plan.network))

    def _candidates(self, known: AllocationClaim | None, addresses: list[str], tries: int) -> list[tuple[str, int]]:
        """Where to try now: the claimed place if it is known, else node 0's likely port and one more."""
        if known is not None:
            return [(known.head.address, known.head.port)]
        others = self._ports[1:]
        ports = [self._ports[0], *([others[tries % len(others)]] if others and tries else [])]
        return [(address, port) for port in ports for address in addresses]

    async def _try(self, address: str, port: int, join: Join, listener: HeadListener) -> bool:
        link = HeadLink(listener)
        connection = await dial(self._make, link, address, port, timeout_s=CONNECT_BOUND_S)
        if connection is None:
            return False
        connection.send(join)
        asyncio.get_running_loop().call_later(ANSWER_BOUND_S, link.give_up, connection)
        return await link.answered
