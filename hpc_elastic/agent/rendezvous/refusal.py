"""Passes on a refusal: node 0 could not claim the allocation, and the others would wait for a head in vain."""

from __future__ import annotations

import asyncio

from hpc_elastic.agent.net.transport import Connection
from hpc_elastic.errors import HpcElasticError
from hpc_elastic.membership.messages import Join, Message, Refused

OTHERS_COME_WITHIN_S = 20.0  # then they try to claim the allocation themselves, and are told the same


class Refuser:
    """Answers every join of the other agents with the error of this one.

    Args:
        error: why there will be no head.
        others: how many agents are to be told.
    """

    def __init__(self, error: HpcElasticError, others: int) -> None:
        self._refused = Refused(reason=error.message, exit_code=int(error.exit_code))
        self._others = others
        self._told: set[str] = set()
        self._all_told = asyncio.Event()

    async def wait(self) -> None:
        """Returns when everybody has been told, or should have come."""
        if self._others:
            await asyncio.wait([asyncio.ensure_future(self._all_told.wait())], timeout=OTHERS_COME_WITHIN_S)

    def opened(self, connection: Connection) -> None:
        """Of transport.Receiver: it says who it is next."""

    def received(self, connection: Connection, message: Message) -> None:
        """Of transport.Receiver."""
        if isinstance(message, Join):
            connection.send(self._refused)
            self._told.add(message.node)
        connection.close()
        if len(self._told) == self._others:
            self._all_told.set()

    def closed(self, connection: Connection, why: str) -> None:
        """Of transport.Receiver: it has read the answer, or is gone."""
