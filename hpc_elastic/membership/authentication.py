"""The protocol of an authenticated connection, for both of its ends, as bytes in and bytes out.

Theory of operation. Both sides know the run's secret. The dialling side opens with a nonce, the
listening side answers with its own and proves that it knows the secret, the dialling side proves
it too; each proof is an HMAC over its side, both nonces and the scope (run, job and restart count),
so that a proof is good for one end of one connection of one allocation only. Each direction then has
a key of its own, and every frame carries a MAC over its sequence number and body: a frame that is
changed, dropped, repeated or from another connection ends the connection.

    listening:  AWAITS_HELLO  --hello, answered with nonce and proof-->  AWAITS_PROOF  --proof-->  OPEN
    dialling:   AWAITS_ANSWER  --nonce and proof, answered with proof-->  OPEN
    any         --any other input-->  REFUSED, for good

A frame on the wire is its body's length (4 bytes, big endian), the MAC (32 bytes; zero in the
handshake) and the body, UTF-8 JSON. The handshake has exactly one encoding: a handshake with a changed byte
is refused although its JSON may mean the same. A side that has not proved that it knows the secret gets one answer,
and no more memory than `LARGEST_HANDSHAKE`.
"""

from __future__ import annotations

import hmac
import json
from dataclasses import dataclass
from enum import Enum

from hpc_elastic.codec import Json

PROTOCOL = 1
SECRET_BYTES = 32
NONCE_BYTES = 16
MAC_BYTES = 32
HEADER_BYTES = 4 + MAC_BYTES
LARGEST_HANDSHAKE = 512  # twice what is needed, so that a later protocol's longer hello is refused by its number
LARGEST_FRAME = 4 * 1024 * 1024
_ENCODER = json.JSONEncoder(separators=(",", ":"))  # json.dumps makes an encoder for every call
_DECODER = json.JSONDecoder()


class ProtocolError(Exception):
    """The other side is not an agent of this allocation, or a frame was tampered with."""


class WrongSecretError(ProtocolError):
    """The other side speaks this protocol, but its proof is wrong."""


class Side(str, Enum):
    """Which end of the connection this is."""

    DIALLING = "dialling"
    LISTENING = "listening"

    @property
    def other(self) -> Side:
        """Return the opposite end of the connection."""
        return Side.LISTENING if self is Side.DIALLING else Side.DIALLING


class HandshakeStage(str, Enum):
    """The stage that a session has reached; the module's docstring has the transitions."""

    AWAITS_HELLO = "awaits hello"
    AWAITS_ANSWER = "awaits answer"
    AWAITS_PROOF = "awaits proof"
    OPEN = "open"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The run, job and start of the job that a connection belongs to. Agents of any other are refused."""

    run: str
    job_id: str
    restart_count: int

    def to_bytes(self) -> bytes:
        """Return the scope as unambiguous bytes for the MACs."""
        return json.dumps([PROTOCOL, self.run, self.job_id, self.restart_count]).encode()


class Session:
    """One end of one connection.

    Args:
        side: which end of the connection this is.
        secret: the run's secret.
        scope: the run, job and start of the job, on which both ends must agree.
        nonce: `NONCE_BYTES` fresh random bytes.
    """

    __slots__ = ("_buffer", "_keys", "_nonces", "_received", "_scope", "_secret", "_sent", "_side", "_stage")

    def __init__(self, side: Side, *, secret: bytes, scope: Scope, nonce: bytes) -> None:
        self._side = side
        self._secret = secret
        self._scope = scope.to_bytes()
        self._nonces = {side: nonce}
        self._keys: dict[Side, bytes] = {}
        self._buffer = bytearray()
        self._sent = 0
        self._received = 0
        self._stage = HandshakeStage.AWAITS_HELLO if side is Side.LISTENING else HandshakeStage.AWAITS_ANSWER

    @property
    def is_authenticated(self) -> bool:
        """Return whether both sides have proved that they know the secret, and every frame since was genuine."""
        return self._stage is HandshakeStage.OPEN

    def open(self) -> bytes:
        """Return the bytes that the dialling side sends first; none on the listening side."""
        if self._side is Side.LISTENING:
            return b""
        return _frame(_hello(self._nonces[self._side]))

    def receive(self, data: bytes | bytearray) -> tuple[bytes, list[Json]]:
        """Take in the bytes that the connection delivered.

        Returns:
            The bytes to send back for the handshake, and the bodies of complete, genuine frames.

        Raises:
            ProtocolError: the connection must be closed. All bodies in this data are lost, and so are later ones.
        """
        if self._stage is HandshakeStage.REFUSED:
            raise ProtocolError("the connection was refused before")
        self._buffer += data
        answer, bodies = b"", []
        try:
            while (frame := self._next_frame()) is not None:
                mac, body = frame
                if self._stage is HandshakeStage.OPEN:
                    bodies.append(self._open_frame(mac, body))
                else:
                    answer += self._shake(mac, body)
        except ProtocolError:
            self._stage = HandshakeStage.REFUSED
            self._buffer.clear()
            raise
        return answer, bodies

    def send(self, body: Json) -> bytes:
        """Return the frame for a body; the session must be authenticated."""
        return self.seal(encode_body(body))

    def seal(self, encoded: bytes) -> bytes:
        """Return the frame for a body that is encoded already, as one body is that goes to many members.

        Raises:
            ProtocolError: the session is not authenticated, or the body is over `LARGEST_FRAME`.
        """
        if not self.is_authenticated:
            raise ProtocolError("the connection is not authenticated yet")
        if len(encoded) > LARGEST_FRAME:
            raise ProtocolError(f"a frame of {len(encoded)} bytes is over the limit of {LARGEST_FRAME}")
        mac = self._mac(self._side, self._sent, encoded)
        self._sent += 1
        return len(encoded).to_bytes(4, "big") + mac + encoded

    def seal_piece(self, piece: bytes | memoryview) -> bytes:
        """Return the header of a frame whose body, a piece of binary data, follows as it is."""
        mac = self._mac(self._side, self._sent, piece)
        self._sent += 1
        return len(piece).to_bytes(4, "big") + mac

    def check_piece(self, mac: bytes | memoryview, piece: bytes | memoryview) -> None:
        """Check the body of a frame that was read without `receive`, once the session is authenticated.

        Raises:
            ProtocolError: it is not the next one that the other side has sent.
        """
        if not self.is_authenticated or not hmac.compare_digest(
            mac, self._mac(self._side.other, self._received, piece)
        ):
            self._stage = HandshakeStage.REFUSED
            raise ProtocolError("a frame was changed, dropped or repeated on its way")
        self._received += 1

    def _next_frame(self) -> tuple[bytes, bytes] | None:
        if len(self._buffer) < 4:
            return None
        length = int.from_bytes(self._buffer[:4], "big")
        limit = LARGEST_FRAME if self._stage is HandshakeStage.OPEN else LARGEST_HANDSHAKE
        if length > limit:
            raise ProtocolError(f"a frame of {length} bytes is over the limit of {limit}")
        if len(self._buffer) < HEADER_BYTES + length:
            return None
        mac = bytes(self._buffer[4:HEADER_BYTES])
        body = bytes(self._buffer[HEADER_BYTES : HEADER_BYTES + length])
        del self._buffer[: HEADER_BYTES + length]
        return mac, body

    def _shake(self, mac: bytes, body: bytes) -> bytes:
        if mac != bytes(MAC_BYTES):
            raise ProtocolError("the other side is not an agent: its first words carry a MAC")
        if self._stage is HandshakeStage.AWAITS_HELLO:
            return self._hear_hello(body)
        if self._stage is HandshakeStage.AWAITS_ANSWER:
            return self._hear_answer(body)
        _check_proof(body, {"proof": self._proof(Side.DIALLING)})
        self._open()
        return b""

    def _hear_hello(self, body: bytes) -> bytes:
        nonce = self._hear_nonce(parse_body(body))
        if body != encode_body(_hello(nonce)):
            raise ProtocolError("the other side is not an agent: its first words hold more than a hello")
        self._stage = HandshakeStage.AWAITS_PROOF
        return _frame({**_hello(self._nonces[self._side]), "proof": self._proof(self._side)})

    def _hear_answer(self, body: bytes) -> bytes:
        answer = parse_body(body)
        nonce = self._hear_nonce(answer)
        if "proof" not in answer:
            raise ProtocolError("the other side is not an agent: it gave no proof")
        _check_proof(body, {**_hello(nonce), "proof": self._proof(Side.LISTENING)})
        self._open()
        return _frame({"proof": self._proof(self._side)})

    def _hear_nonce(self, body: Json) -> bytes:
        nonce = self._nonces[self._side.other] = _nonce(body)
        if body.get("protocol") != PROTOCOL:
            raise ProtocolError(f"the other side speaks protocol {body.get('protocol')!r:.20}, this one {PROTOCOL}")
        return nonce

    def _open(self) -> None:
        self._keys = {side: self._derive(f"frames {side.value}") for side in Side}
        self._stage = HandshakeStage.OPEN

    def _proof(self, side: Side) -> str:
        return self._derive(f"proof {side.value}").hex()

    def _derive(self, label: str) -> bytes:
        nonces = self._nonces[Side.DIALLING] + self._nonces[Side.LISTENING]
        return hmac.digest(self._secret, label.encode() + b"\0" + nonces + self._scope, "sha256")

    def _mac(self, side: Side, number: int, body: bytes | memoryview) -> bytes:
        if isinstance(body, bytes):
            return hmac.digest(self._keys[side], number.to_bytes(8, "big") + body, "sha256")
        mac = hmac.new(self._keys[side], number.to_bytes(8, "big"), "sha256")
        mac.update(body)  # without a copy of it
        return mac.digest()

    def _open_frame(self, mac: bytes, body: bytes) -> Json:
        if not hmac.compare_digest(mac, self._mac(self._side.other, self._received, body)):
            raise ProtocolError("a frame was changed, dropped or repeated on its way")
        self._received += 1
        return parse_body(body)


def _hello(nonce: bytes) -> Json:
    return {"protocol": PROTOCOL, "nonce": nonce.hex()}


def _check_proof(body: bytes, expected: Json) -> None:
    """Refuse a frame that is not byte for byte the expected one, which only a side with the secret can make.

    Raises:
        WrongSecretError: the frame is another one.
    """
    if not hmac.compare_digest(body, encode_body(expected)):
        raise WrongSecretError("the other side does not know this run's secret, or is of another allocation")


def _frame(body: Json) -> bytes:
    encoded = encode_body(body)
    return len(encoded).to_bytes(4, "big") + bytes(MAC_BYTES) + encoded


def encode_body(body: Json) -> bytes:
    """Return a frame's body as it goes over the wire."""
    return _ENCODER.encode(body).encode()


def parse_body(body: bytes) -> Json:
    """Return the JSON object in a frame's body.

    Raises:
        ProtocolError: it is none.
    """
    try:
        data = _DECODER.decode(body.decode())
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
