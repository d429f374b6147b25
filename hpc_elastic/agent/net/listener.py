"""Accepts connections, and bounds the cost of those that are not authenticated.

Theory of operation. Any program that can reach the port can connect, as often as it likes. A connection
that has not proved that it knows the secret is unauthenticated: it has `transport.HANDSHAKE_BOUND_S` for the proof,
however slowly it sends. There are never more than `most_unauthenticated` of them: a new one makes the listener close
the oldest. An agent authenticates within a round trip, so it is among the oldest only if a flood of connections
arrives within that time, and then the agent dials again. A turn of the event loop accepts only a few connections, so
that authenticated connections get their turns. When the process runs out of file descriptors, unauthenticated
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
FILES_BESIDE = 256  # open files that an agent may have besides its connections and those for its workers
FILES_A_WORKER = 8  # a pidfd, a file for stacks, memories for states, pipes for its output


def allow_connections(agents: int, workers: int = 0) -> None:
    """Raise this process's soft limit of open files, if it is too low for the head of so many agents.

    With the usual soft limit of 1,024, a head could not accept all agents of a larger step, nor could an agent start a
    worker on each of a node's 256 hardware threads. Workers inherit the limit.

    Args:
        agents: how many connections there may be.
        workers: how many workers this agent may start.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = agents + UNAUTHENTICATED + FILES_BESIDE + FILES_A_WORKER * workers
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(needed, hard)), hard))


def most_unauthenticated(agents: int) -> int:
    """Return how many unauthenticated connections may be open.

    That is all agents of the step and some more, if the limit of open files allows.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(4 * ACCEPTED_A_TURN, min(UNAUTHENTICATED + agents, soft // 2))


class Listener:
    """A listening socket that agents, and any other program on the network, can dial.

    Args:
        listener: the listening socket, which this object owns and closes from now on.
        make: makes a connection.
        receiver: gets the events of authenticated connections.
        most: how many unauthenticated connections may be open.
        say: takes a few lines for the log about refused connections.
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
        self._accepted: dict[socket.socket, Connection] = {}  # those without a transport yet, which would close them
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()
        self._opens_again: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        listener.listen(BACKLOG)
        self._open()

    @property
    def unauthenticated(self) -> int:
        """The number of open connections that are not authenticated yet."""
        return len(self._unauthenticated)

    async def close(self) -> None:
        """Stop accepting and close unauthenticated connections; authenticated ones stay open."""
        if self._listener.fileno() >= 0:
            self._shut()
            self._listener.close()
        for connection in tuple(self._unauthenticated):
            connection.abort("this agent leaves")
        self._say.begin_anew()
        await self._tasks.cancel()
        for accepted, connection in self._accepted.items():  # their tasks were cancelled before the first step
            accepted.close()
            connection.connection_lost(None)
        self._accepted.clear()

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
        self._accepted[accepted] = connection
        self._tasks.run(self._connect(connection, accepted))

    async def _connect(self, connection: Connection, accepted: socket.socket) -> None:
        del self._accepted[accepted]
        try:
            await self._loop.connect_accepted_socket(lambda: connection, accepted)
        except OSError:  # the peer has closed it already
            accepted.close()
            connection.connection_lost(None)

    def _refused(self, connection: Connection, why: str) -> None:
        self._say(f"refused {connection.peer}: {why}")
