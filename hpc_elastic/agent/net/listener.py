"""Accepts connections, and bounds what those may cost that have proved nothing yet.

Theory of operation. Anybody who can reach the port can connect, as often as they like. A connection
that has not proved that it knows the secret is unauthenticated: it has `transport.HANDSHAKE_BOUND_S` to do
so however slowly it talks, and there are never more than `most_unauthenticated`: for a new one the oldest has
to go. An agent proves itself within a round trip, so it is among the oldest only if a flood is as
quick as that, and then it comes again. A turn of the event loop accepts a few connections only, so
that the connections that matter have theirs. When the process runs out of file descriptors, unauthenticated
connections are closed first, and none is accepted for a moment; members' connections are never closed.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Callable

from hpc_elastic.agent.net.rate_limit import RateLimitedSay
from hpc_elastic.agent.net.transport import Connection, ConnectionFactory, Receiver
from hpc_elastic.agent.node.network import BACKLOG
from hpc_elastic.agent.system.tasks import Tasks
from hpc_elastic.membership.authentication import Side

UNAUTHENTICATED = 256
ACCEPTED_A_TURN = 16
PAUSES_FOR_S = 0.2
FILES_BESIDE = 256  # that an agent may have open beside its connections


def allow_connections(agents: int) -> None:
    """Raises the limit of this process's open files, where it is low, to what the head of so many agents needs.

    The usual soft limit of 1,024 would keep the rest of a larger step outside. The workers inherit it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = agents + UNAUTHENTICATED + FILES_BESIDE
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(needed, hard)), hard))


def most_unauthenticated(agents: int) -> int:
    """How many unauthenticated connections may be open: all agents of the step and some more, if files allow."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(4 * ACCEPTED_A_TURN, min(UNAUTHENTICATED + agents, soft // 2))


class Listener:
    """A listening socket for agents, and for whoever else on the network dials it.

    Args:
        listener: the listening socket, which belongs to this object from now on.
        make: makes a connection.
        receiver: is told of connections that are authenticated.
        most: how many unauthenticated connections may be open.
        say: for a few lines about those that were refused.
    """

    def __init__(
        self,
        listener: socket.socket,
        make: ConnectionFactory,
        receiver: Receiver,
        *,
        most: int,
        say: Callable[[str], None],
    ) -> None:
        self._listener = listener
        self._make = make
        self._receiver = receiver
        self._most = most
        self._say = RateLimitedSay(say, "connections were refused")
        self._unauthenticated: dict[Connection, None] = {}  # the oldest first
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()
        self._opens_again: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        listener.listen(BACKLOG)
        self._open()

    @property
    def unauthenticated(self) -> int:
        """How many connections are here that have proved nothing yet."""
        return len(self._unauthenticated)

    async def close(self) -> None:
        """Accepts nobody any more; unauthenticated connections are closed, the others stay."""
        if self._listener.fileno() >= 0:
            self._shut()
            self._listener.close()
        for connection in tuple(self._unauthenticated):
            connection.abort("this agent leaves")
        self._say.begin_anew()
        await self._tasks.cancel()

    def _open(self) -> None:
        self._opens_again = None
        self._loop.add_reader(self._listener, self._accept)

    def _shut(self) -> None:
        self._loop.remove_reader(self._listener)
        if self._opens_again is not None:
            self._opens_again.cancel()

    def _accept(self) -> None:
        for _ in range(ACCEPTED_A_TURN):
            try:
                accepted, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # EMFILE, ENFILE, ENOBUFS, ENOMEM: accept(2)
                self._shut()
                self._opens_again = self._loop.call_later(PAUSES_FOR_S, self._open)
                self._say(f"cannot accept connections: {error.strerror}")
                self._make_room(len(self._unauthenticated) // 2)
                return
            accepted.setblocking(False)
            self._make_room(self._most - 1)
            self._let_in(accepted)

    def _make_room(self, most: int) -> None:
        while len(self._unauthenticated) > most:
            oldest = next(iter(self._unauthenticated))
            del self._unauthenticated[oldest]
            oldest.refuse("others came before it had authenticated")

    def _let_in(self, accepted: socket.socket) -> None:
        connection = self._make(Side.LISTENING, self._receiver)
        connection.on_refused = self._refused
        self._unauthenticated[connection] = None
        connection.authenticated.add_done_callback(lambda _: self._unauthenticated.pop(connection, None))
        self._tasks.run(self._connect(connection, accepted))

    async def _connect(self, connection: Connection, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: connection, accepted)
        except OSError:  # gone already
            accepted.close()
            connection.connection_lost(None)

    def _refused(self, connection: Connection, why: str) -> None:
        self._say(f"refused {connection.peer}: {why}")
