"""Tells the other agents that node 0 could not claim the allocation; they would wait for a head in vain."""

from __future__ import annotations

import asyncio
import contextlib

from hpc_elastic.agent.net.transport import Connection
from hpc_elastic.errors import HpcElasticError
from hpc_elastic.membership.messages import Join, Message, Refused

OTHERS_COME_WITHIN_S = 20.0  # after that they try to claim the allocation themselves, and get the same error


class Refuser:
    """Answers the join of every other agent with the error that this agent got.

    Args:
        error: why there will be no head.
        others: how many agents are to be told.
        within_s: for how long they are awaited.
    """

    def __init__(self, error: HpcElasticError, others: int, *, within_s: float = OTHERS_COME_WITHIN_S) -> None:
        self._refused = Refused(reason=error.message, exit_code=int(error.exit_code))
        self._others = others
        self._within_s = within_s
        self._told: set[str] = set()
        self._all_told = asyncio.Event()

    async def wait(self) -> None:
        """Waits until all other agents have been told, or the time is over."""
        if self._others:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._all_told.wait(), self._within_s)

    def opened(self, connection: Connection) -> None:
        """Implements transport.Receiver: nothing is done before the join comes."""

    def received(self, connection: Connection, message: Message) -> None:
        """Implements transport.Receiver: answers a join with the refusal, and closes the connection."""
        if isinstance(message, Join):
            connection.send(self._refused)
            self._told.add(message.node)
        connection.close()
        if len(self._told) == self._others:
            self._all_told.set()

    def closed(self, connection: Connection, why: str) -> None:
        """Implements transport.Receiver: nothing is left to do, the agent has read the refusal or is gone."""
