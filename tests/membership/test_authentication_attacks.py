"""Whoever holds the wires: every byte changed, frames mixed from many connections, and what gets through."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.membership.authentication import (
    HEADER_BYTES,
    LARGEST_FRAME,
    LARGEST_HANDSHAKE,
    ProtocolError,
    Scope,
    Session,
    Side,
)
from tests.membership.test_authentication import SCOPE, SECRET, a_session, connect, connected, frame

SAID: list[dict[str, Any]] = [{"number": 1}, {"type": "beat", "number": 2}, {"text": "é" * 5}]


@dataclass(frozen=True)
class Stream:
    """What one side got in a good dialogue, frame by frame; the last of them carry `SAID`."""

    side: Side
    frames: tuple[bytes, ...]

    @property
    def data(self) -> bytes:
        return b"".join(self.frames)

    def bodies_before(self, position: int) -> int:
        """How many of the bodies are whole before a position."""
        handshake, end, count = len(self.frames) - len(SAID), 0, 0
        for number, part in enumerate(self.frames):
            end += len(part)
            count += end <= position and number >= handshake
        return count


def record() -> dict[Side, Stream]:
    """A good dialogue. Its nonces are those of `a_session`, so it can be played to a new session of either side."""
    dialling, listening = a_session(Side.DIALLING), a_session(Side.LISTENING)
    hello = dialling.open()
    answer, _ = listening.receive(hello)
    proof, _ = dialling.receive(answer)
    listening.receive(proof)
    to_listening = (hello, proof, *(dialling.send(body) for body in SAID))
    to_dialling = (answer, *(listening.send(body) for body in SAID))
    return {Side.LISTENING: Stream(Side.LISTENING, to_listening), Side.DIALLING: Stream(Side.DIALLING, to_dialling)}


DIALOGUE = record()
every_side = pytest.mark.parametrize("stream", DIALOGUE.values(), ids=[side.value for side in DIALOGUE])
streams = st.sampled_from(list(DIALOGUE.values()))


def play(side: Side, parts: Sequence[bytes]) -> tuple[list[Any], bool]:
    """What a new session takes for genuine, and whether it refused something."""
    session = a_session(side)
    session.open()
    bodies: list[Any] = []
    for part in parts:
        try:
            bodies += session.receive(part)[1]
        except ProtocolError:
            assert not session.is_authenticated
            with pytest.raises(ProtocolError, match="refused before"):
                session.receive(b"")
            return bodies, True
    return bodies, False


def first_difference(one: bytes, other: bytes) -> int:
    shorter = min(len(one), len(other))
    return next((at for at in range(shorter) if one[at] != other[at]), shorter)


def in_place(frames: Sequence[bytes], position: int, make: Callable[[int], int]) -> list[bytes]:
    """The frames, with one byte of all of them changed."""
    changed, start = [], 0
    for part in frames:
        at = position - start
        changed.append(part if not 0 <= at < len(part) else part[:at] + bytes([make(part[at])]) + part[at + 1 :])
        start += len(part)
    return changed


@every_side
def test_the_recorded_dialogue_is_a_good_one(stream: Stream) -> None:
    assert play(stream.side, stream.frames) == (SAID, False)
    assert play(stream.side, [bytes([byte]) for byte in stream.data]) == (SAID, False)


@every_side
@pytest.mark.parametrize("bit", range(8))
def test_no_bit_can_be_changed_anywhere(stream: Stream, bit: int) -> None:
    for position in range(len(stream.data)):
        bodies, is_refused = play(stream.side, in_place(stream.frames, position, lambda byte: byte ^ 1 << bit))
        assert bodies == SAID[: stream.bodies_before(position)], position
        # A longer length makes the session wait for the rest, as long as that may be.
        is_length = any(0 <= position - start < 4 for start in starts(stream))
        assert is_refused or is_length, position


def starts(stream: Stream) -> list[int]:
    return [sum(map(len, stream.frames[:number])) for number in range(len(stream.frames))]


@every_side
def test_a_stream_that_ends_anywhere_delivers_whole_frames_only(stream: Stream) -> None:
    for position in range(len(stream.data)):
        bodies, is_refused = play(stream.side, [stream.data[:position]])
        assert bodies == SAID[: stream.bodies_before(position)]
        assert not is_refused


@every_side
def test_no_byte_can_be_left_out_or_put_in(stream: Stream) -> None:
    for position in range(len(stream.data)):
        for tampered in (
            stream.data[:position] + stream.data[position + 1 :],
            stream.data[:position] + b"\0" + stream.data[position:],
            stream.data[:position] + stream.data[position : position + 1] + stream.data[position:],
        ):
            differs_at = first_difference(stream.data, tampered)
            bodies, _ = play(stream.side, [tampered[:differs_at], tampered[differs_at:]])
            assert bodies == SAID[: stream.bodies_before(differs_at)], position


@every_side
def test_a_dialogue_that_is_played_again_to_a_new_connection_says_nothing(stream: Stream) -> None:
    session = a_session(stream.side, nonce=b"new connection!!")
    session.open()
    *before, last = stream.frames[: len(stream.frames) - len(SAID)]
    for part in before:
        session.receive(part)
    with pytest.raises(ProtocolError, match="secret"):
        session.receive(last)
    for part in stream.frames[-len(SAID) :]:
        with pytest.raises(ProtocolError, match="refused before"):
            session.receive(part)


def foreign_frames() -> list[bytes]:
    """What an attacker may have recorded elsewhere: other runs, jobs, starts, connections, and either direction."""
    found = [part for stream in DIALOGUE.values() for part in stream.frames]
    scopes = [
        SCOPE,
        Scope(run="other", job_id="42", restart_count=0),
        Scope(run="run", job_id="43", restart_count=0),
        Scope(run="run", job_id="42", restart_count=1),
    ]
    for number, scope in enumerate(scopes):
        nonce = bytes([number]) * 16
        dialling = a_session(Side.DIALLING, scope=scope, nonce=nonce)
        listening = a_session(Side.LISTENING, scope=scope, nonce=nonce if scope is SCOPE else b"")
        hello = dialling.open()
        answer, _ = listening.receive(hello)
        proof, _ = dialling.receive(answer)
        listening.receive(proof)
        found += [
            hello,
            answer,
            proof,
            *(dialling.send(body) for body in SAID),
            *(listening.send(body) for body in SAID),
        ]
    return found


FOREIGN = foreign_frames()


@st.composite
def tampered_frames(draw: st.DrawFn, stream: Stream) -> list[bytes]:
    frames = list(stream.frames)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(frames) - 1)) if frames else 0
        how = draw(st.sampled_from(["drop", "repeat", "swap", "foreign", "cut", "noise", "longer"]))
        if how == "foreign":
            frames.insert(at, draw(st.sampled_from(FOREIGN)))
        elif how == "noise" or not frames:
            frames.insert(at, draw(st.binary(max_size=80)))
        elif how == "drop":
            del frames[at]
        elif how == "repeat":
            frames.insert(draw(st.integers(at, len(frames))), frames[at])
        elif how == "swap":
            other = draw(st.integers(0, len(frames) - 1))
            frames[at], frames[other] = frames[other], frames[at]
        elif how == "cut":
            frames[at] = frames[at][: draw(st.integers(0, len(frames[at])))]
        else:
            length = draw(st.integers(0, 2**32 - 1))
            frames[at] = length.to_bytes(4, "big") + frames[at][4:]
    return frames


@given(st.data(), streams)
def test_only_what_comes_before_the_first_tampering_is_delivered(data: st.DataObject, stream: Stream) -> None:
    tampered = data.draw(tampered_frames(stream))
    differs_at = first_difference(stream.data, b"".join(tampered))
    bodies, _ = play(stream.side, tampered)
    assert bodies == SAID[: len(bodies)]
    assert len(bodies) <= stream.bodies_before(differs_at)


@dataclass
class Agent:
    """One end that is honest, and speaks as soon as it may."""

    name: str
    session: Session
    nonce: bytes
    scope: Scope
    secret: bytes
    side: Side
    heard: list[Any] = field(default_factory=list)
    sent: list[Any] = field(default_factory=list)
    is_over: bool = False


def agents() -> list[Agent]:
    """Two honest pairs of one allocation, one of another start of the job, and one without the secret."""
    made = []
    for number, (secret, restart_count) in enumerate([(SECRET, 0), (SECRET, 0), (SECRET, 1), (b"guess", 0)]):
        scope = Scope(run="run", job_id="42", restart_count=restart_count)
        for side in Side:
            nonce = bytes([number]) * 15 + (b"d" if side is Side.DIALLING else b"l")
            session = a_session(side, secret=secret, scope=scope, nonce=nonce)
            made.append(Agent(f"{side.value} {number}", session, nonce, scope, secret, side))
    return made


def partner_of(agent: Agent, everybody: Sequence[Agent]) -> Agent:
    """With whom an agent believes to speak: whose nonce it was given."""
    nonce = agent.session._nonces[agent.side.other]
    (partner,) = [other for other in everybody if other.nonce == nonce]
    return partner


class Wire:
    """Keeps every frame that was ever sent, and delivers any of them to anybody."""

    def __init__(self) -> None:
        self.agents = agents()
        self.frames = [agent.session.open() for agent in self.agents if agent.side is Side.DIALLING]

    def deliver(self, part: bytes, agent: Agent) -> bytes:
        """One frame; the agent speaks as soon as it is let."""
        if agent.is_over:
            return b""
        try:
            answer, bodies = agent.session.receive(part)
        except ProtocolError:
            agent.is_over = True
            return b""
        agent.heard += bodies
        self.frames += [answer] if answer else []
        if agent.session.is_authenticated:
            body = {"from": agent.name, "number": len(agent.sent)}
            agent.sent.append(body)
            self.frames.append(agent.session.send(body))
        return answer

    def introduce(self, dialling: int, listening: int) -> None:
        """Passes on what two agents say to each other until they are connected or give up."""
        here, there = self.agents[2 * dialling], self.agents[2 * listening + 1]
        self.deliver(self.deliver(self.deliver(self.frames[dialling], there), here), there)


steps = st.one_of(
    st.tuples(st.just("introduce"), st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.just("deliver"), st.integers(0, 60), st.integers(0, 7)),
)


@given(st.lists(steps, max_size=60))
def test_who_delivers_any_frame_to_anybody_can_do_no_more_than_a_wire(schedule: list[tuple[str, int, int]]) -> None:
    """Every frame that was ever sent can be delivered to any session, any number of times, in any order."""
    wire = Wire()
    for what, one, other in schedule:
        if what == "introduce":
            wire.introduce(one, other)
        else:
            wire.deliver(wire.frames[one % len(wire.frames)], wire.agents[other])
    for agent in wire.agents:
        if agent.heard or agent.session.is_authenticated:
            partner = partner_of(agent, wire.agents)
            assert (partner.side, partner.scope, partner.secret) == (agent.side.other, agent.scope, agent.secret)
            assert partner_of(partner, wire.agents) is agent
            assert agent.heard == partner.sent[: len(agent.heard)]


def test_a_wire_that_only_passes_on_is_heard() -> None:
    """The same agents, so that the test above does not hold for want of anybody who is heard."""
    everybody = agents()
    dialling, listening = everybody[0].session, everybody[1].session
    connect(dialling, listening)
    assert listening.receive(dialling.send({"a": 1}))[1] == [{"a": 1}]


def proof_in(answer: bytes) -> str:
    return str(json.loads(answer[HEADER_BYTES:])["proof"])


def test_the_listening_sides_own_proof_does_not_let_anybody_in() -> None:
    listening = a_session(Side.LISTENING)
    answer, _ = listening.receive(a_session(Side.DIALLING).open())
    with pytest.raises(ProtocolError, match="secret"):
        listening.receive(frame(json.dumps({"proof": proof_in(answer)}, separators=(",", ":")).encode()))


def test_the_proof_that_one_agent_gives_cannot_be_used_to_answer_another() -> None:
    """The attacker asks a real head, with the nonce of an agent that dialled it, under a nonce of its own."""
    victim, head = a_session(Side.DIALLING), a_session(Side.LISTENING)
    answer, _ = head.receive(victim.open())
    own = {"protocol": 1, "nonce": b"attacker's nonce".hex(), "proof": proof_in(answer)}
    with pytest.raises(ProtocolError, match="secret"):
        victim.receive(frame(json.dumps(own, separators=(",", ":")).encode()))


NONCE = "ab" * 16


@pytest.mark.parametrize(
    "hello",
    [
        f'{{"protocol": 1,"nonce":"{NONCE}"}}',
        f'{{"protocol":1,"nonce":"{NONCE.upper()}"}}',
        f'{{"protocol":1,"nonce":"{" ".join(["ab"] * 16)}"}}',
        f'{{"protocol":1.0,"nonce":"{NONCE}"}}',
        f'{{"protocol":true,"nonce":"{NONCE}"}}',
        f'{{"nonce":"{NONCE}","protocol":1}}',
        f'{{"protocol":1,"nonce":"{NONCE}","more":1}}',
        f'{{"protocol":1,"nonce":"x","nonce":"{NONCE}"}}',
        f'{{"protocol":1,"nonce":"{NONCE}"}}\n',
    ],
)
def test_a_hello_has_one_spelling(hello: str) -> None:
    a_session(Side.LISTENING).receive(frame(f'{{"protocol":1,"nonce":"{NONCE}"}}'.encode()))
    with pytest.raises(ProtocolError, match="more than a hello"):
        a_session(Side.LISTENING).receive(frame(hello.encode()))


def test_a_second_hello_is_refused_and_not_answered() -> None:
    listening = a_session(Side.LISTENING)
    hello = a_session(Side.DIALLING).open()
    assert listening.receive(hello)[0]
    with pytest.raises(ProtocolError, match="secret"):
        listening.receive(hello)


def test_an_echo_of_the_hello_is_no_agent() -> None:
    dialling = a_session(Side.DIALLING)
    with pytest.raises(ProtocolError, match="gave no proof"):
        dialling.receive(dialling.open())


@pytest.mark.parametrize("size", [10, LARGEST_HANDSHAKE, 300_000])
def test_before_authentication_no_more_than_a_handshake_is_kept(size: int) -> None:
    session = a_session(Side.LISTENING)
    waiting = frame(bytes(LARGEST_HANDSHAKE))[:-1]
    session.receive(waiting[:size])
    assert len(session._buffer) <= HEADER_BYTES + LARGEST_HANDSHAKE
    refused = a_session(Side.LISTENING)
    with pytest.raises(ProtocolError, match=f"over the limit of {LARGEST_HANDSHAKE}"):
        refused.receive((LARGEST_HANDSHAKE + 1).to_bytes(4, "big") + bytes(size))
    assert not refused._buffer


def test_a_frame_of_the_largest_size_is_taken_and_not_kept() -> None:
    dialling, listening = connected()
    body = {"text": "x" * (LARGEST_FRAME - len('{"text":""}'))}
    sent = dialling.send(body)
    assert listening.receive(sent[:-1]) == (b"", [])
    assert listening.receive(sent[-1:]) == (b"", [body])
    assert not listening._buffer
