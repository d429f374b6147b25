"""Asks an agent to be this node's head, and tells whoever listens what it says."""

from __future__ import annotations

import asyncio
from typing import Protocol

from hpc_elastic.agent.net.transport import Connection, ConnectionFactory, Receiver, dial
from hpc_elastic.membership.messages import Dropped, Elsewhere, Join, Message, Refused, Welcome


class HeadListener(Protocol):
    """Who hears what a head says, once it has answered the join. Every word comes with its connection.

    A connection that was replaced by another one may still have something to say.
    """

    def head_found(self, connection: Connection) -> None:
        """A head answered the join on this connection; what it says comes next."""

    def head_said(self, connection: Connection, message: Message) -> None:
        """A message of the head."""

    def head_lost(self, connection: Connection, why: str) -> None:
        """The connection to the head is over."""


class HeadLink(Receiver):
    """A connection that is the head's as soon as the join is answered on it."""

    def __init__(self, listener: HeadListener) -> None:
        self._listener = listener
        self._connection: Connection | None = None
        self.why = ""
        self.elsewhere: Elsewhere | None = None  # what the other side says of its own head
        self.answered: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def give_up(self) -> None:
        """Closes the connection if the join was not answered yet; with a word, for the other side may have got it."""
        if not self.answered.done() and self._connection is not None:
            self._connection.send(Dropped(reason="no answer to the join"))
            self._connection.close("no answer to the join")

    def opened(self, connection: Connection) -> None:
        """Of transport.Receiver."""
        self._connection = connection

    def received(self, connection: Connection, message: Message) -> None:
        """Of transport.Receiver: the first message must be an answer to the join."""
        if not self.answered.done():
            if isinstance(message, Elsewhere):
                self.elsewhere = message  # and hangs up
                return
            if not isinstance(message, (Welcome, Refused)):
                connection.abort("the other side is no head")
                return
            self.answered.set_result(True)
            self._listener.head_found(connection)
        self._listener.head_said(connection, message)

    def closed(self, connection: Connection, why: str) -> None:
        """Of transport.Receiver."""
        if not self.answered.done():
            self.why = why
            self.answered.set_result(False)
        else:
            self._listener.head_lost(connection, why)


async def ask_to_join(
    make: ConnectionFactory, link: HeadLink, join: Join, *, address: str, port: int, timeout_s: float
) -> Connection:
    """Connects to an agent and says who this one is; `link` has the answer.

    Raises:
        OSError: nobody is there; a TimeoutError if nothing answered.
        ProtocolError: who is there is not an agent of ours.
        NoHandshakeError: who is there did not say enough to tell.
    """
    connection = await dial(make, link, address, port, timeout_s=timeout_s)
    connection.send(join)
    return connection
