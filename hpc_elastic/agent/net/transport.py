"""Authenticated connections between agents, on asyncio."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Callable
from typing import Protocol, cast

from hpc_elastic.codec import DecodeError
from hpc_elastic.membership.authentication import NONCE_BYTES, ProtocolError, Scope, Session, Side, encode_body
from hpc_elastic.membership.messages import Message, decode_message, encode_message
from hpc_elastic.rundir.records import Endpoint

HANDSHAKE_BOUND_S = 5.0
KEEPALIVE_S = 5  # between the kernel's keepalive probes, by which a dead machine is detected
RECEIVED_AT_ONCE = 64 * 1024

Trace = Callable[[str], None]  # takes a line about every message, for `log_level: debug`


class NoHandshakeError(Exception):
    """The other side took the connection and did not complete the handshake."""


class Receiver(Protocol):
    """The callbacks for what a connection delivers."""

    def opened(self, connection: Connection) -> None:
        """Take note that both sides have proved that they know the secret."""

    def received(self, connection: Connection, message: Message) -> None:
        """Take in a message that has arrived."""

    def closed(self, connection: Connection, why: str) -> None:
        """Take note, once, that a connection that was opened has ended."""


class Encoder:
    """Encodes messages as bytes; a message that goes to many members, one after the other, is encoded once."""

    def __init__(self) -> None:
        self._latest: Message | None = None
        self._encoded = b""

    def encode(self, message: Message) -> bytes:
        """Return the message as the body of a frame."""
        if message is not self._latest:
            self._encoded = encode_body(encode_message(message))
            self._latest = message
        return self._encoded


class Connection(asyncio.BufferedProtocol):
    """One end of a connection, which passes messages to its receiver once it is authenticated.

    `on_refused` is called, with the reason, when this side closes the connection because the peer is not an agent of
    this run. `buffer` may be shared with other connections of the same event loop, because received bytes are taken
    out of it at once. Without it asyncio allocates 256 KiB for every message, which takes longer than all other
    handling of the message. `encoder` may be shared, too. A handshake that takes longer than `handshake_bound_s`
    seconds is refused.
    """

    def __init__(
        self,
        side: Side,
        *,
        secret: bytes,
        scope: Scope,
        receiver: Receiver,
        buffer: bytearray,
        encoder: Encoder,
        trace: Trace | None = None,
        handshake_bound_s: float = HANDSHAKE_BOUND_S,
    ) -> None:
        self._side = side
        self._session = Session(side, secret=secret, scope=scope, nonce=os.urandom(NONCE_BYTES))
        self._receiver = receiver
        self._buffer = buffer
        self._encoder = encoder
        self._trace = trace
        self._handshake_bound_s = handshake_bound_s
        self._transport: asyncio.Transport | None = None
        self._handshake_bound: asyncio.TimerHandle | None = None
        self._why = "the connection was closed"
        self._is_opened = False
        self._is_aborted = False
        self._is_closed_here = False
        self._is_closed_by_peer = False
        self.opened_at = float("inf")  # set before any message is received
        self.on_refused: Callable[[Connection, str], None] = lambda _connection, _why: None
        self._error: ProtocolError | DecodeError | None = None
        loop = asyncio.get_running_loop()
        self.authenticated: asyncio.Future[bool] = loop.create_future()

    @property
    def local_address(self) -> str:
        """The address of this end, as the other side sees it."""
        return str(self._transport.get_extra_info("sockname")[0]) if self._transport else ""

    @property
    def remote(self) -> Endpoint | None:
        """The endpoint on which the other side listens, if this side dialled; else None."""
        name = self._transport.get_extra_info("peername") if self._transport is not None else None
        return Endpoint(address=str(name[0]), port=int(name[1])) if name and self._side is Side.DIALLING else None

    @property
    def is_closed_by_peer(self) -> bool:
        """Whether the other machine's kernel ended the connection, because the process there closed it or is dead.

        False if this side closed it first, or if the network or the other machine only stopped answering.
        """
        return self._is_closed_by_peer

    def send(self, message: Message) -> None:
        """Send a message; drop it if the connection is closing."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._session.seal(self._encoder.encode(message)))
            self._show("sent to", message)

    def set_dead_after(self, seconds: float | None) -> None:
        """Set for how long the other machine may acknowledge nothing before the kernel closes the connection.

        None means the kernel's default, which is long.
        """
        connected = self._transport.get_extra_info("socket") if self._transport is not None else None
        if connected is not None:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, seconds is not None)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int((seconds or 0) * 1000))

    def close(self, why: str = "this side closed the connection") -> None:
        """Close the connection after what was sent is delivered."""
        self._why = why
        self._is_closed_here = True
        if self._transport is not None:
            self._transport.close()

    def abort(self, why: str) -> None:
        """Close the connection at once, and drop what is not sent yet."""
        self._why = why
        self._is_aborted = self._is_closed_here = True
        if self._transport is not None:
            self._transport.abort()

    def refuse(self, why: str) -> None:
        """Close the connection at once and call `on_refused`.

        The reason is that the peer is no agent of this run, or that data was altered on its way.
        """
        if not self._is_aborted:
            self.on_refused(self, why)
        self.abort(why)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Implement asyncio.BufferedProtocol: opens the handshake."""
        self._transport = cast("asyncio.Transport", transport)
        if self._is_aborted:
            self._transport.abort()
            return
        loop = asyncio.get_running_loop()
        self._handshake_bound = loop.call_later(self._handshake_bound_s, self.refuse, "no handshake in time")
        self._transport.write(self._session.open())

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002, the protocol's signature
        """Implement asyncio.BufferedProtocol: return the buffer for the next bytes."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Implement asyncio.BufferedProtocol: decode the received bytes and pass messages to the receiver."""
        try:
            answer, bodies = self._session.receive(self._buffer[:nbytes])
            if answer and self._transport is not None:
                self._transport.write(answer)
            if self._session.is_authenticated and not self._is_opened:
                self._open()
            for body in bodies:
                if self._transport is None or self._transport.is_closing():
                    break  # the receiver closed the connection at the message before
                message = decode_message(body)
                self._show("received from", message)
                self._receiver.received(self, message)
        except (ProtocolError, DecodeError) as error:
            self._error = error
            self.refuse(str(error))

    def eof_received(self) -> None:
        """Implement asyncio.BufferedProtocol: no more data will arrive; asyncio closes this end next."""
        if not self._is_closed_here:
            self._why = "the other side closed the connection"
            self._is_closed_by_peer = True

    def connection_lost(self, exc: Exception | None) -> None:
        """Implement asyncio.BufferedProtocol: tells the receiver once that the connection has ended."""
        if isinstance(exc, (ConnectionResetError, BrokenPipeError)) and not self._is_closed_here:
            self._is_closed_by_peer = True
        if self._handshake_bound is not None:
            self._handshake_bound.cancel()
        why = str(exc) if exc is not None else self._why
        if self._trace is not None and (self._is_opened or self._side is Side.DIALLING):
            self._trace(f"connection with {self.peer} is over: {why}")
        if not self.authenticated.done():
            self.authenticated.set_result(False)
        if self._is_opened:
            self._receiver.closed(self, why)

    def no_handshake(self) -> ProtocolError | NoHandshakeError:
        """Return the exception that says why a connection that has ended was never authenticated."""
        return self._error if isinstance(self._error, ProtocolError) else NoHandshakeError(self._why)

    def _open(self) -> None:
        if self.authenticated.cancelled():  # who dialled has stopped to wait, a turn of the loop before it says so
            self.abort("the dial was given up")
            return
        self._is_opened = True
        self.opened_at = asyncio.get_running_loop().time()
        if self._handshake_bound is not None:
            self._handshake_bound.cancel()
        if self._trace is not None:
            self._trace(f"connection with {self.peer}: both sides have proved that they know the secret")
        self.authenticated.set_result(True)
        self._receiver.opened(self)

    @property
    def peer(self) -> str:
        """The address and port of the other end, for people."""
        name = self._transport.get_extra_info("peername") if self._transport else None
        return f"{name[0]}:{name[1]}" if name else "nobody"

    def _show(self, how: str, message: Message) -> None:
        if self._trace is not None:
            self._trace(f"{how} {self.peer}: {json.dumps(encode_message(message), ensure_ascii=False)}")


ConnectionFactory = Callable[[Side, Receiver], Connection]


def connection_factory(
    secret: bytes, scope: Scope, *, trace: Trace | None = None, handshake_bound_s: float = HANDSHAKE_BOUND_S
) -> ConnectionFactory:
    """Return a factory of connections with the run's secret and this allocation's scope.

    Args:
        secret: the run's secret.
        scope: the run and the allocation that both sides must name.
        trace: takes a line about every message.
        handshake_bound_s: how long a handshake may take, in seconds.
    """
    buffer, encoder = bytearray(RECEIVED_AT_ONCE), Encoder()

    def make(side: Side, receiver: Receiver) -> Connection:
        return Connection(
            side,
            secret=secret,
            scope=scope,
            receiver=receiver,
            buffer=buffer,
            encoder=encoder,
            trace=trace,
            handshake_bound_s=handshake_bound_s,
        )

    return make


async def dial(make: ConnectionFactory, receiver: Receiver, address: str, port: int, *, timeout_s: float) -> Connection:
    """Connect to an agent.

    Returns:
        The authenticated connection.

    Raises:
        OSError: the connection attempt failed; a TimeoutError if nothing answered.
        ProtocolError: the program that answered is not an agent of this run.
        NoHandshakeError: the program that answered did not send enough to tell whether it is an agent.
    """
    loop = asyncio.get_running_loop()
    attempt = loop.create_connection(lambda: make(Side.DIALLING, receiver), address, port)
    try:
        _, connection = await asyncio.wait_for(attempt, timeout_s)
    except asyncio.TimeoutError as error:  # no TimeoutError before Python 3.11
        raise TimeoutError(f"no answer within {timeout_s:g} s") from error
    try:
        is_authenticated = await connection.authenticated
    except asyncio.CancelledError:
        connection.abort("the other side took too long")
        raise
    if not is_authenticated:
        raise connection.no_handshake()
    return connection
