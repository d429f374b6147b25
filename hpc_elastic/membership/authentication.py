"""Both ends of an authenticated connection, as bytes in and bytes out.

Theory of operation. Both sides know the run's secret. The dialling side opens with a nonce, the
listening side answers with its own and proves that it knows the secret, the dialling side proves
it too; each proof is an HMAC over both nonces and the scope (run, job and restart count), so that
a proof is good for one connection of one allocation only. Each direction then has a key of its
own, and every frame carries a MAC over its sequence number and body: a frame that is changed,
dropped, repeated or from another connection ends the connection.

A frame on the wire is its body's length (4 bytes, big endian), the MAC (32 bytes; zero in the
handshake) and the body, UTF-8 JSON.
"""

from __future__ import annotations

import hmac
import json
from dataclasses import dataclass
from enum import Enum

from hpc_elastic.codec import Json

PROTOCOL = 1
NONCE_BYTES = 16
MAC_BYTES = 32
HEADER_BYTES = 4 + MAC_BYTES
LARGEST_HANDSHAKE = 4 * 1024
LARGEST_FRAME = 4 * 1024 * 1024


class ProtocolError(Exception):
    """The other side is not an agent of this allocation, or a frame was tampered with."""


class WrongSecretError(ProtocolError):
    """The other side speaks our protocol, and its proof is wrong."""


class Side(str, Enum):
    """Which end of the connection this is."""

    DIALLING = "dialling"
    LISTENING = "listening"

    @property
    def other(self) -> Side:
        """The end at the other side."""
        return Side.LISTENING if self is Side.DIALLING else Side.DIALLING


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What a connection is for. Agents of another run, job or start of the job are refused."""

    run: str
    job_id: str
    restart_count: int

    def to_bytes(self) -> bytes:
        """Unambiguous bytes for the MACs."""
        return json.dumps([PROTOCOL, self.run, self.job_id, self.restart_count]).encode()


class Session:
    """One end of one connection.

    Args:
        side: which end.
        secret: the run's secret.
        scope: what both ends must agree on.
        nonce: `NONCE_BYTES` fresh random bytes.
    """

    __slots__ = ("_buffer", "_keys", "_nonces", "_received", "_scope", "_secret", "_sent", "_side", "is_authenticated")

    def __init__(self, side: Side, *, secret: bytes, scope: Scope, nonce: bytes) -> None:
        self._side = side
        self._secret = secret
        self._scope = scope.to_bytes()
        self._nonces = {side: nonce}
        self._keys: dict[Side, bytes] = {}
        self._buffer = bytearray()
        self._sent = 0
        self._received = 0
        self.is_authenticated = False

    def open(self) -> bytes:
        """What the dialling side sends first; nothing on the listening side."""
        if self._side is Side.LISTENING:
            return b""
        return _frame({"protocol": PROTOCOL, "nonce": self._nonces[self._side].hex()})

    def receive(self, data: bytes) -> tuple[bytes, list[Json]]:
        """Takes what the connection delivered.

        Returns:
            What to send back for the handshake, and the bodies of complete, genuine frames.

        Raises:
            ProtocolError: the connection must be closed.
        """
        self._buffer += data
        answer, bodies = b"", []
        while (frame := self._next_frame()) is not None:
            mac, body = frame
            if self.is_authenticated:
                bodies.append(self._open_frame(mac, body))
            else:
                answer += self._shake(_parse(body))
        return answer, bodies

    def send(self, body: Json) -> bytes:
        """The frame for a body; the session must be authenticated."""
        if not self.is_authenticated:
            raise ProtocolError("the connection is not authenticated yet")
        encoded = _dump(body)
        if len(encoded) > LARGEST_FRAME:
            raise ProtocolError(f"a frame of {len(encoded)} bytes is over the limit of {LARGEST_FRAME}")
        mac = self._mac(self._side, self._sent, encoded)
        self._sent += 1
        return len(encoded).to_bytes(4, "big") + mac + encoded

    def _next_frame(self) -> tuple[bytes, bytes] | None:
        if len(self._buffer) < 4:
            return None
        length = int.from_bytes(self._buffer[:4], "big")
        limit = LARGEST_FRAME if self.is_authenticated else LARGEST_HANDSHAKE
        if length > limit:
            raise ProtocolError(f"a frame of {length} bytes is over the limit of {limit}")
        if len(self._buffer) < HEADER_BYTES + length:
            return None
        mac = bytes(self._buffer[4:HEADER_BYTES])
        body = bytes(self._buffer[HEADER_BYTES : HEADER_BYTES + length])
        del self._buffer[: HEADER_BYTES + length]
        return mac, body

    def _shake(self, body: Json) -> bytes:
        other = self._side.other
        if other not in self._nonces:
            self._nonces[other] = _nonce(body)
            if body.get("protocol") != PROTOCOL:
                raise ProtocolError(f"the other side speaks protocol {body.get('protocol')!r}, this one {PROTOCOL}")
        if self._side is Side.LISTENING and "proof" not in body:
            nonce = self._nonces[self._side].hex()
            return _frame({"protocol": PROTOCOL, "nonce": nonce, "proof": self._proof(self._side)})
        # As bytes: of two texts, compare_digest takes ASCII only, and this one is anybody's.
        if not hmac.compare_digest(_dump(body.get("proof")), _dump(self._proof(other))):
            raise WrongSecretError("the other side does not know this run's secret, or is of another allocation")
        self._keys = {side: self._derive(f"frames {side.value}") for side in Side}
        self.is_authenticated = True
        return _frame({"proof": self._proof(self._side)}) if self._side is Side.DIALLING else b""

    def _proof(self, side: Side) -> str:
        return self._derive(f"proof {side.value}").hex()

    def _derive(self, label: str) -> bytes:
        nonces = self._nonces[Side.DIALLING] + self._nonces[Side.LISTENING]
        return hmac.digest(self._secret, label.encode() + b"\0" + nonces + self._scope, "sha256")

    def _mac(self, side: Side, number: int, body: bytes) -> bytes:
        return hmac.digest(self._keys[side], number.to_bytes(8, "big") + body, "sha256")

    def _open_frame(self, mac: bytes, body: bytes) -> Json:
        if not hmac.compare_digest(mac, self._mac(self._side.other, self._received, body)):
            raise ProtocolError("a frame was changed, dropped or repeated on its way")
        self._received += 1
        return _parse(body)


def _frame(body: Json) -> bytes:
    encoded = _dump(body)
    return len(encoded).to_bytes(4, "big") + bytes(MAC_BYTES) + encoded


def _dump(body: Json) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def _parse(body: bytes) -> Json:
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("a frame is not JSON") from error
    if not isinstance(data, dict):
        raise ProtocolError("a frame is not a JSON object")
    return data


def _nonce(body: Json) -> bytes:
    try:
        nonce = bytes.fromhex(body["nonce"])
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError("the other side is not an agent: it sent no nonce") from error
    if len(nonce) != NONCE_BYTES:
        raise ProtocolError(f"a nonce has {NONCE_BYTES} bytes, not {len(nonce)}")
    return nonce
