"""Sends a join to an agent that may be the head, and passes its messages on to a `HeadListener`."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Protocol

from hpc_elastic.agent.net.transport import Connection, ConnectionFactory, NoHandshakeError, Receiver, dial
from hpc_elastic.membership.authentication import ProtocolError
from hpc_elastic.membership.messages import Dropped, Elsewhere, Join, Message, Refused, Welcome
from hpc_elastic.membership.timing import LONGEST_ANSWER_S
from hpc_elastic.rundir.records import Endpoint


class HeadListener(Protocol):
    """The receiver of a head's messages, from its answer to the join on. Every call names the connection.

    A connection that was replaced by another one may still deliver messages.
    """

    def head_found(self, connection: Connection) -> None:
        """Is called when a head has answered the join on this connection, before the answer itself is delivered."""

    def head_said(self, connection: Connection, message: Message) -> None:
        """Is called with each message of the head."""

    def head_lost(self, connection: Connection, why: str) -> None:
        """Is called when the connection to the head has closed."""


class HeadLink(Receiver):
    """The receiver on one dialled connection, which becomes the connection to the head when the join is answered."""

    def __init__(self, listener: HeadListener) -> None:
        self._listener = listener
        self._connection: Connection | None = None
        self.why: str  # the connection has closed without an answer, once it has
        self.is_refused = False  # nobody listens there, says the machine
        self.elsewhere: Elsewhere | None = None  # where an agent that is no head says its head is
        self.answered: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def give_up(self) -> None:
        """Closes the connection if the join is not answered yet, with a `Dropped`, as the join may have arrived."""
        if not self.answered.done() and self._connection is not None:
            self._connection.send(Dropped(reason="no answer to the join"))
            self._connection.close("no answer to the join")

    def opened(self, connection: Connection) -> None:
        """Implements transport.Receiver: keeps the connection."""
        self._connection = connection

    def received(self, connection: Connection, message: Message) -> None:
        """Implements transport.Receiver: the first message must be an answer to the join."""
        if not self.answered.done():
            if isinstance(message, Elsewhere):
                self.elsewhere = message  # the other agent closes the connection next
                return
            if not isinstance(message, (Welcome, Refused)):
                connection.abort("the other side is no head")
                return
            self.answered.set_result(True)
            self._listener.head_found(connection)
        self._listener.head_said(connection, message)

    def closed(self, connection: Connection, why: str) -> None:
        """Implements transport.Receiver: the join stays unanswered, or the head is lost."""
        if not self.answered.done():
            self.why = why
            self.answered.set_result(False)
        else:
            self._listener.head_lost(connection, why)


class _Probe(Receiver):
    """The receiver on a connection on which nothing is said."""

    def opened(self, connection: Connection) -> None:
        """Implements transport.Receiver."""

    def received(self, connection: Connection, message: Message) -> None:
        """Implements transport.Receiver: an agent that is no head may say where its head is."""

    def closed(self, connection: Connection, why: str) -> None:
        """Implements transport.Receiver."""


async def answers(make: ConnectionFactory, agent: Endpoint) -> bool:
    """Return whether an agent of this run answers at an address, within a moment; nothing is asked of it."""
    try:
        connection = await dial(make, _Probe(), agent.address, agent.port, timeout_s=LONGEST_ANSWER_S)
    except (OSError, ProtocolError, NoHandshakeError):
        return False
    connection.close()
    return True


async def ask_to_join(
    make: ConnectionFactory, link: HeadLink, join: Join, *, address: str, port: int, timeout_s: float
) -> Connection:
    """Connects to an agent and sends it the join, with this node's clock; `link` receives the answer.

    Raises:
        OSError: nothing listens there; a TimeoutError if nothing answered.
        ProtocolError: the other side is not an agent of this run.
        NoHandshakeError: the other side did not send enough of the handshake to tell what it is.
    """
    connection = await dial(make, link, address, port, timeout_s=timeout_s)
    connection.send(replace(join, clock_ns=time.time_ns()))
    return connection
