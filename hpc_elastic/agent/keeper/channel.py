"""Carries JSON messages and binary pieces between keepers over TCP, authenticated as the agents' own connections are.

The handshake and the MAC of each frame are those of `membership.authentication`, with a scope of their own, so that no
frame of an agent's connection is one of a keeper's. A body is JSON or a piece of a state, as the messages before say.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable

from hpc_elastic.codec import Json
from hpc_elastic.membership.authentication import (
    HEADER_BYTES,
    LARGEST_HANDSHAKE,
    NONCE_BYTES,
    ProtocolError,
    Scope,
    Session,
    Side,
    encode_body,
    parse_body,
)

PIECE = 1024 * 1024
LARGEST_MESSAGE = 1024 * 1024
HANDSHAKE_S = 5.0
STALLS_S = 10.0  # nothing goes on for so long: the other machine is dead, or cut off


class ChannelError(Exception):
    """The other side is gone, has stalled, or is no keeper of this run."""


class Channel:
    """One end of a connection between keepers; not for several threads at a time.

    Args:
        connected: the connected socket, which the channel owns.
        side: which end it is.
        secret: the run's secret.
        scope: the run, job and start of the job.
        stalls_s: how long the other side may neither take nor send anything.

    Raises:
        ChannelError: the other side has not proved that it knows the secret.
    """

    def __init__(
        self, connected: socket.socket, side: Side, *, secret: bytes, scope: Scope, stalls_s: float = STALLS_S
    ) -> None:
        self._socket = connected
        scope = Scope(run=f"{scope.run}\0keeper", job_id=scope.job_id, restart_count=scope.restart_count)
        self._session = Session(side, secret=secret, scope=scope, nonce=os.urandom(NONCE_BYTES))
        self._header = memoryview(bytearray(HEADER_BYTES))
        self._until: float | None = time.monotonic() + min(HANDSHAKE_S, stalls_s)  # however many bytes come
        try:
            connected.settimeout(min(HANDSHAKE_S, stalls_s))
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected.sendall(self._session.open())
            while not self._session.is_authenticated:
                body = bytearray(self._receive_header(LARGEST_HANDSHAKE))
                self._receive_into(memoryview(body))
                answer, _ = self._session.receive(bytes(self._header) + body)
                connected.sendall(answer)
            self._until = None
            connected.settimeout(stalls_s)
        except (OSError, ProtocolError) as error:
            connected.close()
            raise ChannelError(_words(error)) from error
        except BaseException:
            connected.close()
            raise

    def send(self, message: Json) -> None:
        """Send a message.

        Raises:
            ChannelError: the other side is gone, or takes nothing.
        """
        self.send_piece(encode_body(message))

    def send_piece(self, piece: bytes | memoryview) -> None:
        """Send a piece of binary data.

        Raises:
            ChannelError: the other side is gone, or takes nothing.
        """
        try:
            self._socket.sendall(self._session.seal_piece(piece))
            self._socket.sendall(piece)
        except OSError as error:
            raise ChannelError(_words(error)) from error

    def receive(self) -> Json:
        """Wait for a message, and return it.

        Raises:
            ChannelError: none came in time, or it is none.
        """
        body = bytearray(self._begin(LARGEST_MESSAGE))
        self._finish(memoryview(body))
        try:
            return parse_body(bytes(body))
        except ProtocolError as error:
            raise ChannelError(str(error)) from error

    def receive_piece(self, into: memoryview) -> memoryview:
        """Wait for a piece of binary data, and return it as the part of the memory into which it was read.

        Raises:
            ChannelError: none came in time, or it is larger.
        """
        piece = into[: self._begin(len(into))]
        self._finish(piece)
        return piece

    def wait(self, seconds: float | None) -> None:
        """Let the other side be silent for so long from now on; None: for ever."""
        self._socket.settimeout(seconds)

    def abort(self) -> None:
        """End what another thread waits for here."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _begin(self, most: int) -> int:
        try:
            return self._receive_header(most)
        except (OSError, ProtocolError) as error:
            raise ChannelError(_words(error)) from error

    def _finish(self, body: memoryview) -> None:
        try:
            self._receive_into(body)
            self._session.check_piece(self._header[4:], body)
        except (OSError, ProtocolError) as error:
            raise ChannelError(_words(error)) from error

    def _receive_header(self, most: int) -> int:
        self._receive_into(self._header)
        length = int.from_bytes(self._header[:4], "big")
        if length > most:
            raise ProtocolError(f"a frame of {length} bytes is over the limit of {most}")
        return length

    def _receive_into(self, memory: memoryview) -> None:
        while memory:
            if self._until is not None:
                self._socket.settimeout(max(0.001, self._until - time.monotonic()))
            count = self._socket.recv_into(memory)
            if not count:
                raise ConnectionResetError("the other side has closed the connection")
            memory = memory[count:]


def dial_keeper(address: str, port: int, *, secret: bytes, scope: Scope, stalls_s: float = STALLS_S) -> Channel:
    """Connect to another node's keeper.

    Raises:
        ChannelError: nothing answers there, or it is no keeper of this run.
    """
    try:
        connected = socket.create_connection((address, port), timeout=min(HANDSHAKE_S, stalls_s))
    except OSError as error:
        raise ChannelError(f"{address}:{port}: {_words(error)}") from error
    return Channel(connected, Side.DIALLING, secret=secret, scope=scope, stalls_s=stalls_s)


Dial = Callable[[str, int], Channel]


def _words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
