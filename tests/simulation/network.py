"""The simulated network: which ways are open, and connections as the kernels of two machines have them.

Theory of operation. A way between two nodes may be closed in one direction. What is sent there meanwhile is
sent again by the kernel when it opens, unless the sender's kernel does not remember the connection any more.
A connection keeps its order and never says a thing twice. A machine without power answers nothing, a kernel
without the connection answers with a reset, and who has hung up hears nothing more.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from hpc_elastic.agent.net.transport import HANDSHAKE_BOUND_S, NoHandshakeError, Receiver
from hpc_elastic.membership.authentication import ProtocolError, Side, WrongSecretError
from hpc_elastic.membership.messages import Message
from hpc_elastic.rundir.records import Endpoint
from tests.simulation.clock import NEVER, chooser

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.world import SimulatedRun

RESENT_WITHIN = 0.3  # of how long a way was closed: the kernel tries less and less often
OPEN, PROOF, END = "open", "proof", "end"  # besides messages: the handshake's two words, and no more will come
SYN_AGAIN_S = (1.0, 2.0, 4.0, 8.0, 16.0)


class Network:
    """The ways between all nodes, and who listens where."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._closed: dict[tuple[int, int], tuple[float, float]] = {}  # since and until when
        self.was_ever_closed = False  # any of them
        self.dice = random.Random(f"{run.scenario.seed}/network")
        self.delay_s = chooser(self.dice, run.scenario.delays_s)  # of what is sent

    def close(self, source: int, target: int, until: float) -> None:
        """Nothing gets through from source to target for a while."""
        if source != target:
            self.was_ever_closed = True
            since, before = self._closed.get((source, target), (self._run.clock.now, 0.0))
            since = since if self._run.clock.now < before else self._run.clock.now
            self._closed[source, target] = since, max(before, until)

    def heal(self) -> None:
        """All ways are open from now on."""
        now = self._run.clock.now
        self._closed = {way: (since, min(until, now)) for way, (since, until) in self._closed.items()}
        for agent in self._run.everybody:
            for socket in list(agent.sockets):
                socket.send_again()
                socket.other.send_again()

    @property
    def closed(self) -> dict[tuple[int, int], float]:
        """The ways that are closed just now, and until when."""
        return {way: until for way, (_, until) in self._closed.items() if until > self._run.clock.now}

    def opens_at(self, source: int, target: int) -> float:
        return self._closed.get((source, target), (0.0, 0.0))[1]

    def was_closed_for(self, source: int, target: int) -> float:
        since, until = self._closed.get((source, target), (0.0, 0.0))
        return until - since

    def is_open(self, source: Agent, target: Agent) -> bool:
        """Whether what is sent now gets there."""
        return target.is_powered and self._run.clock.now >= self.opens_at(source.number, target.number)

    def calm_since(self, one: int, other: int) -> float:
        """Since when both ways are open, or will be."""
        return max(self.opens_at(one, other), self.opens_at(other, one))

    async def connect(self, agent: Agent, address: str, port: int) -> Socket:
        """As connect(2).

        Raises:
            ConnectionRefusedError: nobody listens there.
        """
        target, clock = self._run.agent_at(address, port), self._run.clock
        connected: asyncio.Future[Socket] = asyncio.get_running_loop().create_future()

        def answer(socket: Socket | None) -> None:
            if connected.done():
                if socket is not None:
                    socket.abort()
            elif socket is None:
                connected.set_exception(ConnectionRefusedError(111, "Connection refused"))
            else:
                connected.set_result(socket)

        def knock(tries: tuple[float, ...]) -> None:
            if connected.done() or not agent.is_running:
                return
            if not self.is_open(agent, target):
                if tries:
                    clock.after(tries[0], lambda: knock(tries[1:]))
                return
            mine: Socket | None = None
            if target.listener is not None:
                mine, theirs = Socket(agent), Socket(target)
                mine.other, theirs.other = theirs, mine
                target.listener.put(theirs)
            if self.is_open(target, agent):
                clock.after(self.delay_s(), lambda: agent.process.arrives(answer, mine))

        clock.after(self.delay_s(), lambda: knock(SYN_AGAIN_S))
        self._run.conduct.dials(agent, target)
        self._run.large.dials(agent)
        self._run.spent["dial"] += 1
        try:
            return await connected
        finally:
            self._run.conduct.has_dialled(agent)


class Listener:
    """A listening socket, for `agent.net.listener`; the kernel takes connections whatever its process does."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._waiting: deque[Socket] = deque()
        self._readable: Callable[[], object] | None = None
        self._is_closed = False

    def put(self, socket: Socket) -> None:
        if self._is_closed:
            socket.abort()
            return
        self._waiting.append(socket)
        self._agent.process.arrives(self._is_readable)

    def watch(self, readable: Callable[[], object] | None) -> None:
        self._readable = readable

    def _is_readable(self) -> None:
        if self._waiting and self._readable is not None:
            self._readable()

    def accept(self) -> tuple[Socket, str]:
        if not self._waiting:
            raise BlockingIOError
        return self._waiting.popleft(), ""

    def setblocking(self, is_blocking: bool) -> None:
        """Of socket.socket."""

    def listen(self, backlog: int) -> None:
        self._agent.listener = self

    def fileno(self) -> int:
        return -1 if self._is_closed else 3

    def close(self) -> None:
        self._is_closed = True
        self._agent.listener = None
        for socket in self._waiting:
            socket.abort()


class Socket:
    """One end of a connection, as its machine's kernel has it."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.other: Socket
        self.is_open = True
        self.connection: SimulatedConnection | None = None
        self._received: list[Message | str] = []  # before there is a connection
        self._network = agent.run.network
        self._clock = agent.run.clock
        self._is_forgotten = False  # the kernel sends nothing again
        self._latest = 0.0
        self._queue: deque[Message | str] = deque()
        agent.sockets[self] = None

    # What the process does.

    def setblocking(self, is_blocking: bool) -> None:
        """Of socket.socket."""

    def attach(self, connection: SimulatedConnection) -> None:
        """There is somebody to take what comes."""
        self.connection = connection
        received, self._received = self._received, []
        for item in received:
            self._hand_over(item)

    def send(self, message: Message | str) -> None:
        if self.is_open:
            if not isinstance(message, str):
                run = self.agent.run
                if run.foretold.is_played:
                    run.foretold.sends(self.agent, message.KIND)
                run.spent["message"] += 1
            self._put(message)

    def close(self) -> None:
        """Hangs up after what was sent is delivered."""
        if self.is_open:
            self._put(END)
            self._forget_end()

    def abort(self) -> None:
        """Hangs up at once; the kernel may know nothing of the connection from then on."""
        if self.is_open:
            self._is_forgotten = self._network.dice.random() < 0.5
            self.close()

    def reset_both(self) -> None:
        """Somebody between the two machines ends the connection."""
        for each in (self, self.other):
            each.agent.process.arrives(each._ends, ConnectionResetError(104, "Connection reset by peer"))

    def time_out(self, why: str) -> None:
        """This machine's own kernel gives the connection up; the other knows nothing of it."""
        self._is_forgotten = True
        self._queue.clear()
        self.agent.process.arrives(self._ends, OSError(113, why))

    def vanish(self) -> None:
        """The machine has no power."""
        self._forget_end()
        self._is_forgotten = True

    def _forget_end(self) -> None:
        self.is_open = False
        self.agent.sockets.pop(self, None)

    # What the network does.

    def _put(self, item: Message | str) -> None:
        clock, latest = self._clock, self._latest
        arrives_at = clock.now + self._network.delay_s()
        if arrives_at > latest:
            self._latest = latest = arrives_at
        self._queue.append(item)
        clock.at(latest, self._arrive)

    @property
    def under_way(self) -> tuple[str, ...]:
        """What was sent and has not arrived, in its order."""
        return tuple(item if isinstance(item, str) else item.KIND for item in self._queue)

    def send_again(self) -> None:
        """The kernel's next try, at once."""
        if self._queue:
            clock = self.agent.run.clock
            self._latest = clock.now + self._network.delay_s()
            for _ in self._queue:
                clock.at(self._latest, self._arrive)

    def _arrive(self) -> None:
        """The next one in the queue: none overtakes another, however long the way was closed."""
        if not self._queue:
            return
        clock, network, here, there = self._clock, self._network, self.agent, self.other.agent
        opens_at = network.opens_at(here.number, there.number) if network.was_ever_closed else 0.0
        if not there.is_powered or (clock.now < opens_at and self._is_forgotten):
            self._queue.clear()
        elif opens_at == NEVER:
            return
        elif clock.now < opens_at:
            if self._latest < opens_at:  # the kernel's next try; the rest follows it at once
                closed_s = self._network.was_closed_for(here.number, there.number)
                self._latest = opens_at + self._network.dice.uniform(0, RESENT_WITHIN * closed_s)
            clock.at(self._latest, self._arrive)
        else:
            self.other._take(self._queue.popleft())

    def _take(self, item: Message | str) -> None:
        if self.is_open:
            self.agent.process.arrives(self._hand_over, item)
        elif item is not END:
            self._answer_reset()

    def _hand_over(self, item: Message | str) -> None:
        if not self.is_open:
            return
        if self.connection is None:
            self._received.append(item)
        elif item is END:
            self._forget_end()
            self.connection.ended()
        else:
            self.connection.takes(item)

    def _answer_reset(self) -> None:
        other = self.other

        def reset() -> None:
            if self._network.is_open(self.agent, other.agent):
                other.agent.process.arrives(other._ends, ConnectionResetError(104, "Connection reset by peer"))

        clock = self.agent.run.clock
        self._latest = max(self._latest, clock.now + self._network.delay_s())
        clock.at(self._latest, reset)

    def _ends(self, error: OSError) -> None:
        """A kernel has ended the connection, that of the other side most often."""
        if self.is_open:
            self._forget_end()
            if self.connection is not None:
                self.connection.lost(error)


class SimulatedConnection:
    """What `agent.net.transport.Connection` is to its users; the handshake takes its round trips, and no proof."""

    def __init__(self, agent: Agent, side: Side, receiver: Receiver) -> None:
        self._agent = agent
        self._loop = agent.process
        self._side = side
        self._receiver = receiver
        self._socket: Socket | None = None
        self._why = "the connection was closed"
        self._is_opened = False
        self._is_lost = False
        self._is_aborted = False
        self._is_closed_here = False
        self._dead_after_s: float | None = None
        self.is_closed_by_peer = False
        self.said: set[str] = set()  # the kinds of all messages
        self.heard: set[str] = set()
        self.is_in_use = side is Side.DIALLING  # or who has dialled has said what for
        self.opened_at = float("inf")
        self.on_refused: Callable[[SimulatedConnection, str], None] = lambda _connection, _why: None
        self.authenticated: asyncio.Future[bool] = self._loop.create_future()

    # What the agent does.

    def send(self, message: Message) -> None:
        if self._loop.is_armed:
            self._loop.reached()
        if self._socket is not None and not self._is_closed_here:
            self.said.add(message.KIND)
            self._socket.send(message)

    def close(self, why: str = "this side closed the connection") -> None:
        self._hangs_up()
        self._why = why
        self._is_closed_here = True
        if self._socket is not None and not self._is_lost:
            self._parts()
            self._socket.close()
            self._loop.call_soon(self.lost, None)

    def abort(self, why: str) -> None:
        self._hangs_up()
        self._why = why
        self._is_aborted = self._is_closed_here = True
        if self._socket is not None and not self._is_lost:
            self._parts()
            self._socket.abort()
            self._loop.call_soon(self.lost, None)

    def refuse(self, why: str) -> None:
        if not self._is_aborted:
            self.on_refused(self, why)
        self.abort(why)

    def set_dead_after(self, seconds: float | None) -> None:
        self._dead_after_s = seconds
        if seconds is not None:
            self._agent.run.clock.after(seconds, lambda: self._check_peer(seconds))

    @property
    def is_closed_here(self) -> bool:
        """Whether this side sends nothing more."""
        return self._is_closed_here

    @property
    def is_lost(self) -> bool:
        """Whether it has ended, by whichever side."""
        return self._is_lost

    def no_handshake(self) -> ProtocolError | NoHandshakeError:
        return (WrongSecretError if self._agent.has_wrong_secret else NoHandshakeError)(self._why)

    @property
    def peer(self) -> str:
        return self._socket.other.agent.name if self._socket is not None else "nobody"

    @property
    def remote(self) -> Endpoint | None:
        is_dialled = self._socket is not None and self._side is Side.DIALLING
        return Endpoint(address=self.peer, port=self._socket.other.agent.port) if is_dialled and self._socket else None

    @property
    def socket(self) -> Socket | None:
        return self._socket

    # What happens to it.

    def made(self, socket: Socket) -> None:
        self._socket = socket
        if self._is_aborted:
            socket.abort()
            self._loop.call_soon(self.lost, None)
            return
        self._bound = self._loop.call_later(HANDSHAKE_BOUND_S, self.refuse, "no handshake in time")
        socket.send(OPEN)
        socket.attach(self)

    def takes(self, item: Message | str) -> None:
        assert self._socket is not None
        if self._is_closed_here:
            return
        if not isinstance(item, str):
            self.is_in_use = True
            self.heard.add(item.KIND)
            self._receiver.received(self, item)  # type: ignore[arg-type]
        elif item == OPEN and self._agent.has_wrong_secret:
            self.abort("the other side does not know this run's secret")
        elif item == OPEN:
            self._socket.send(PROOF)
        else:
            self._is_opened = True
            self.opened_at = self._loop.time()
            self._bound.cancel()
            if not self.authenticated.done():  # cancelled, if who dialled has stopped to wait
                self.authenticated.set_result(True)
            self._receiver.opened(self)  # type: ignore[arg-type]

    def ended(self) -> None:
        """The other side will say nothing more; asyncio closes this one, too."""
        if not self._is_closed_here:
            self._why = "the other side closed the connection"
            self.is_closed_by_peer = True
        self.lost(None)

    def lost(self, error: OSError | None) -> None:
        if self._is_lost:
            return
        self._is_lost = True
        self._parts()
        if isinstance(error, ConnectionResetError) and not self._is_closed_here:
            self.is_closed_by_peer = True
        if self._socket is not None and hasattr(self, "_bound"):
            self._bound.cancel()
        why = str(error) if error is not None else self._why
        if not self.authenticated.done():
            self.authenticated.set_result(False)
        if self._is_opened:
            self._receiver.closed(self, why)  # type: ignore[arg-type]

    def connection_lost(self, error: OSError | None) -> None:
        self.lost(error)

    def _hangs_up(self) -> None:
        """Before anything else has ended it."""
        if self._is_opened and not (self._is_closed_here or self._is_lost):
            self._agent.run.partings.hangs_up(self._agent, self, self._side)

    def _parts(self) -> None:
        """Whoever asked to join here is without a head from now on, or the head without it."""
        if self._is_opened and self._socket is not None:
            dialler = self._agent if self._side is Side.DIALLING else self._socket.other.agent
            dialler.parted_at = self._agent.run.clock.now

    def _check_peer(self, seconds: float) -> None:
        """As the kernel does while the join is not answered: who is gone acknowledges nothing."""
        if self._dead_after_s is None or self._is_lost or self._socket is None or not self._agent.is_running:
            return
        here, there, network = self._agent, self._socket.other.agent, self._agent.run.network
        if network.is_open(here, there) and network.is_open(there, here):
            self._agent.run.clock.after(seconds, lambda: self._check_peer(seconds))
        else:
            self._socket.time_out("Connection timed out")
