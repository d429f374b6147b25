"""Both ends of a connection, and everybody who might stand between them or pretend."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.membership.authentication import (
    HEADER_BYTES,
    LARGEST_FRAME,
    LARGEST_HANDSHAKE,
    MAC_BYTES,
    ProtocolError,
    Scope,
    Session,
    Side,
)

SECRET = b"s" * 32
SCOPE = Scope(run="run", job_id="42", restart_count=0)


def a_session(side: Side, *, secret: bytes = SECRET, scope: Scope = SCOPE, nonce: bytes = b"") -> Session:
    return Session(side, secret=secret, scope=scope, nonce=nonce or side.value[:1].encode() * 16)


def connect(dialling: Session, listening: Session) -> None:
    hello, _ = listening.receive(dialling.open())
    proof, _ = dialling.receive(hello)
    answer, bodies = listening.receive(proof)
    assert (answer, bodies) == (b"", [])


def connected() -> tuple[Session, Session]:
    dialling, listening = a_session(Side.DIALLING), a_session(Side.LISTENING)
    connect(dialling, listening)
    return dialling, listening


def frame(body: bytes, *, mac: bytes = bytes(MAC_BYTES)) -> bytes:
    return len(body).to_bytes(4, "big") + mac + body


def test_both_sides_know_each_other_after_the_handshake_and_talk() -> None:
    dialling, listening = connected()
    assert dialling.is_authenticated
    assert listening.is_authenticated
    assert listening.receive(dialling.send({"a": 1})) == (b"", [{"a": 1}])
    assert dialling.receive(listening.send({"b": "é\n"})) == (b"", [{"b": "é\n"}])


def test_the_listening_side_says_nothing_first() -> None:
    assert a_session(Side.LISTENING).open() == b""


@pytest.mark.parametrize(
    "other",
    [
        {"secret": b"t" * 32},
        {"scope": Scope(run="other", job_id="42", restart_count=0)},
        {"scope": Scope(run="run", job_id="43", restart_count=0)},
        {"scope": Scope(run="run", job_id="42", restart_count=1)},
    ],
    ids=["secret", "run", "job", "restart"],
)
def test_each_side_rejects_an_agent_with_another(other: dict[str, Any]) -> None:
    dialling, listening = a_session(Side.DIALLING), a_session(Side.LISTENING, **other)
    hello, _ = listening.receive(dialling.open())
    with pytest.raises(ProtocolError, match="secret, or is of another allocation"):
        dialling.receive(hello)
    # One that goes on regardless, with a proof by its own secret, gets no further.
    impostor = a_session(Side.LISTENING, nonce=b"l" * 16)
    proof, _ = dialling_proof(impostor)
    with pytest.raises(ProtocolError):
        listening.receive(proof)
    assert not listening.is_authenticated


def dialling_proof(listening: Session) -> tuple[bytes, Session]:
    dialling = a_session(Side.DIALLING)
    hello, _ = listening.receive(dialling.open())
    proof, _ = dialling.receive(hello)
    return proof, dialling


def test_a_proof_is_good_for_one_connection_only() -> None:
    proof, _ = dialling_proof(a_session(Side.LISTENING))
    later = a_session(Side.LISTENING, nonce=b"x" * 16)
    later.receive(a_session(Side.DIALLING).open())
    with pytest.raises(ProtocolError):
        later.receive(proof)


def test_a_proof_that_is_sent_back_to_its_maker_is_rejected() -> None:
    listening = a_session(Side.LISTENING)
    hello, _ = listening.receive(a_session(Side.DIALLING).open())
    with pytest.raises(ProtocolError):
        listening.receive(hello)


@pytest.mark.parametrize("proof", ["é", "", None, 7, ["x"], {"a": 1}, "\ud800", "0" * 64])
def test_a_wrong_proof_of_any_type_is_a_protocol_error(proof: Any) -> None:
    listening = a_session(Side.LISTENING)
    listening.receive(a_session(Side.DIALLING).open())
    with pytest.raises(ProtocolError):
        listening.receive(frame(json.dumps({"proof": proof}).encode()))


@pytest.mark.parametrize("nonce", [None, 7, "", "zz", "é" * 16, "00" * 15, "00" * 17, ["00"]])
def test_a_wrong_nonce_of_any_type_is_a_protocol_error(nonce: Any) -> None:
    with pytest.raises(ProtocolError, match="nonce"):
        a_session(Side.LISTENING).receive(frame(json.dumps({"protocol": 1, "nonce": nonce}).encode()))


def test_another_protocol_is_rejected_by_its_number() -> None:
    body = json.dumps({"protocol": 2, "nonce": "00" * 16}).encode()
    with pytest.raises(ProtocolError, match="speaks protocol 2, this one 1"):
        a_session(Side.LISTENING).receive(frame(body))


def changed(frames: list[bytes]) -> list[bytes]:
    return [frames[0][:-2] + b"!" + frames[0][-1:], *frames[1:]]


def with_changed_mac(frames: list[bytes]) -> list[bytes]:
    return [frames[0][:4] + bytes([frames[0][4] ^ 1]) + frames[0][5:], *frames[1:]]


def dropped(frames: list[bytes]) -> list[bytes]:
    return frames[1:]


def repeated(frames: list[bytes]) -> list[bytes]:
    return [frames[0], *frames]


def reordered(frames: list[bytes]) -> list[bytes]:
    return frames[::-1]


@pytest.mark.parametrize("tamper", [changed, with_changed_mac, dropped, repeated, reordered])
def test_a_tampered_stream_is_rejected(tamper: Callable[[list[bytes]], list[bytes]]) -> None:
    dialling, listening = connected()
    frames = [dialling.send({"number": number}) for number in range(3)]
    with pytest.raises(ProtocolError, match="changed, dropped or repeated"):
        listening.receive(b"".join(tamper(frames)))


def test_a_frame_sent_back_to_its_sender_is_rejected() -> None:
    dialling, _ = connected()
    with pytest.raises(ProtocolError):
        dialling.receive(dialling.send({"a": 1}))


def test_a_frame_of_another_connection_is_rejected() -> None:
    dialling, _ = connected()
    listening = a_session(Side.LISTENING, nonce=b"x" * 16)
    connect(a_session(Side.DIALLING), listening)
    with pytest.raises(ProtocolError):
        listening.receive(dialling.send({"a": 1}))


@pytest.mark.parametrize("body", [b"[1]", b"7", b"{", b"\xff", b"[" * 100_000, b"1" * 5000])
def test_a_genuine_frame_that_is_no_object_is_rejected(body: bytes) -> None:
    dialling, listening = connected()
    mac = dialling._mac(Side.DIALLING, 0, body)
    with pytest.raises(ProtocolError, match="not"):
        listening.receive(frame(body, mac=mac))


def test_an_oversized_frame_is_rejected_by_its_length_alone() -> None:
    _, listening = connected()
    with pytest.raises(ProtocolError, match="over the limit"):
        listening.receive((LARGEST_FRAME + 1).to_bytes(4, "big"))
    with pytest.raises(ProtocolError, match="over the limit"):
        a_session(Side.LISTENING).receive((LARGEST_HANDSHAKE + 1).to_bytes(4, "big"))


def test_an_oversized_body_is_not_sent() -> None:
    dialling, _ = connected()
    with pytest.raises(ProtocolError, match="over the limit"):
        dialling.send({"text": "x" * LARGEST_FRAME})


def test_nothing_is_sent_before_the_handshake() -> None:
    with pytest.raises(ProtocolError, match="not authenticated"):
        a_session(Side.DIALLING).send({})


@given(st.lists(st.binary(max_size=60), max_size=20), st.sampled_from(Side))
def test_garbage_in_any_chunks_never_authenticates_and_raises_nothing_else(chunks: list[bytes], side: Side) -> None:
    session = a_session(side)
    session.open()
    try:
        for chunk in chunks:
            session.receive(chunk)
    except ProtocolError:
        pass
    assert not session.is_authenticated


@given(st.binary(min_size=1, max_size=200), st.integers(0, 2000))
def test_garbage_after_the_handshake_is_never_a_message(garbage: bytes, cut: int) -> None:
    dialling, listening = connected()
    genuine = dialling.send({"number": 1}) + dialling.send({"number": 2})
    cut %= len(genuine) + 1
    bodies: list[Any] = []
    try:
        bodies += listening.receive(genuine[:cut])[1]
        bodies += listening.receive(garbage)[1]
    except ProtocolError:
        pass
    assert bodies in ([], [{"number": 1}], [{"number": 1}, {"number": 2}])


@given(st.lists(st.dictionaries(st.text(max_size=5), st.integers()), max_size=5), st.integers(1, 50))
def test_a_conversation_arrives_whole_in_pieces_of_any_size(bodies: list[dict[str, int]], size: int) -> None:
    dialling, listening = a_session(Side.DIALLING), a_session(Side.LISTENING)

    def deliver(data: bytes, receiver: Session) -> tuple[bytes, list[Any]]:
        answer, received = b"", []
        for start in range(0, len(data), size):
            more, some = receiver.receive(data[start : start + size])
            answer += more
            received += some
        return answer, received

    hello, _ = deliver(dialling.open(), listening)
    proof, _ = deliver(hello, dialling)
    stream = proof + b"".join(dialling.send(body) for body in bodies)  # at once, behind the last of the handshake
    assert deliver(stream, listening) == (b"", bodies)


def test_a_header_is_a_length_and_a_mac() -> None:
    dialling, _ = connected()
    assert len(dialling.send({})) == HEADER_BYTES + len(b"{}")
