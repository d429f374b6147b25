"""Authenticated connections over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import signal
import socket
import struct
from collections.abc import Awaitable, Callable

import pytest

from hpc_elastic.agent.net.transport import (
    Connection,
    ConnectionFactory,
    Encoder,
    NoHandshakeError,
    connection_factory,
    dial,
)
from hpc_elastic.membership.authentication import Scope, Side, WrongSecretError
from hpc_elastic.membership.messages import Beat, Message, Stop, StopManner, Welcome
from tests.agent.conftest import Spawn

SCOPE = Scope(run="run", job_id="42", restart_count=0)
MAKE = connection_factory(b"s" * 32, SCOPE)
MAKE_HASTY = connection_factory(b"s" * 32, SCOPE, handshake_bound_s=0.02)
DIALLING_AGENT = """
import asyncio
from hpc_elastic.agent.net.transport import connection_factory, dial
from hpc_elastic.membership.authentication import Scope

class Silent:
    opened = received = closed = lambda *_: None

async def main():
    make = connection_factory(b"s" * 32, Scope(run="run", job_id="42", restart_count=0))
    connection = await dial(make, Silent(), "127.0.0.1", {port}, timeout_s=5)
    print("ready", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def reset(connection: Connection) -> None:
    """Ends it with an RST, as the kernel of a process does that left something unread."""
    assert connection._transport is not None
    raw = connection._transport.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.abort("reset")


class Recorder:
    """A receiver that keeps what it is told, and can be waited for."""

    def __init__(self) -> None:
        self.opens: list[Connection] = []
        self.messages: list[Message] = []
        self.closes: list[str] = []
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    def opened(self, connection: Connection) -> None:
        self.opens.append(connection)
        self._tell()

    def received(self, connection: Connection, message: Message) -> None:
        self.messages.append(message)
        self._tell()

    def closed(self, connection: Connection, why: str) -> None:
        self.closes.append(why)
        self._tell()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with self._changed:
            await asyncio.wait_for(self._changed.wait_for(condition), 20)

    def _tell(self) -> None:
        async def notify() -> None:
            async with self._changed:
                self._changed.notify_all()

        task = asyncio.ensure_future(notify())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class Listening:
    """A listening agent, and everything that went wrong in its loop."""

    def __init__(self, receiver: Recorder, server: asyncio.Server) -> None:
        self.receiver = receiver
        self.port = int(server.sockets[0].getsockname()[1])


def play(scene: Callable[[Listening], Awaitable[None]], *, make: ConnectionFactory = MAKE) -> None:
    """Plays a scene with a listening agent; an exception in a callback, which ends an agent, fails it."""

    async def main() -> None:
        loop, troubles = asyncio.get_running_loop(), list[object]()
        loop.set_exception_handler(lambda _, context: troubles.append(context))
        receiver = Recorder()
        server = await loop.create_server(lambda: make(Side.LISTENING, receiver), "127.0.0.1", 0)
        await asyncio.wait_for(scene(Listening(receiver, server)), 30)
        server.close()
        await asyncio.sleep(0)
        assert troubles == []

    asyncio.run(main())


def test_messages_go_both_ways_and_a_close_is_told_once() -> None:
    async def scene(there: Listening) -> None:
        here = Recorder()
        connection = await dial(MAKE, here, "127.0.0.1", there.port, timeout_s=5)
        connection.send(Beat(number=1))
        connection.send(Beat(number=2))
        await there.receiver.until(lambda: len(there.receiver.messages) == 2)
        assert there.receiver.messages == [Beat(number=1), Beat(number=2)]
        there.receiver.opens[0].send(Welcome(allocation=1, head="node0"))
        await here.until(lambda: here.messages == [Welcome(allocation=1, head="node0")])
        connection.close("done")
        await here.until(lambda: bool(here.closes))
        await there.receiver.until(lambda: bool(there.receiver.closes))
        assert here.closes == ["done"]
        connection.send(Beat(number=3))
        assert len(there.receiver.closes) == 1

    play(scene)


def test_what_was_sent_before_a_close_arrives() -> None:
    async def scene(there: Listening) -> None:
        here = Recorder()
        connection = await dial(MAKE, here, "127.0.0.1", there.port, timeout_s=5)
        for number in range(2000):
            connection.send(Beat(number=number))
        connection.close()
        await there.receiver.until(lambda: bool(there.receiver.closes))
        assert len(there.receiver.messages) == 2000

    play(scene)


def test_a_goodbye_is_the_closing_of_the_other_side_only() -> None:
    async def scene(there: Listening) -> None:
        here = Recorder()
        connection = await dial(MAKE, here, "127.0.0.1", there.port, timeout_s=5)
        await there.receiver.until(lambda: bool(there.receiver.opens))
        connection.close()
        await there.receiver.until(lambda: bool(there.receiver.closes))
        await here.until(lambda: bool(here.closes))
        assert there.receiver.opens[0].is_closed_by_peer
        assert there.receiver.closes == ["the other side closed the connection"]
        assert not connection.is_closed_by_peer

    play(scene)


def test_a_reset_is_the_other_kernels_word() -> None:
    async def scene(there: Listening) -> None:
        here = Recorder()
        connection = await dial(MAKE, here, "127.0.0.1", there.port, timeout_s=5)
        await there.receiver.until(lambda: bool(there.receiver.opens))
        reset(connection)
        await there.receiver.until(lambda: bool(there.receiver.closes))
        assert there.receiver.opens[0].is_closed_by_peer
        assert there.receiver.closes == ["[Errno 104] Connection reset by peer"]
        assert not connection.is_closed_by_peer

    play(scene)


@pytest.mark.long
def test_an_agent_that_is_killed_has_closed_its_connection(spawn: Spawn) -> None:
    async def scene(there: Listening) -> None:
        agent = await asyncio.to_thread(spawn, DIALLING_AGENT.format(port=there.port))
        await there.receiver.until(lambda: bool(there.receiver.opens))
        connection = there.receiver.opens[0]
        assert not connection.is_closed_by_peer
        agent.kill()
        await there.receiver.until(lambda: bool(there.receiver.closes))
        assert connection.is_closed_by_peer

    play(scene)


@pytest.mark.long
def test_an_agent_that_is_only_cut_off_has_not_closed_its_connection(spawn: Spawn) -> None:
    """The end of this side's patience, the kernel's or the agent's, says nothing about the other side."""

    async def scene(there: Listening) -> None:
        agent = await asyncio.to_thread(spawn, DIALLING_AGENT.format(port=there.port))
        await there.receiver.until(lambda: bool(there.receiver.opens))
        connection = there.receiver.opens[0]
        agent.send_signal(signal.SIGSTOP)
        connection.abort("not heard for 3 s")
        await there.receiver.until(lambda: bool(there.receiver.closes))
        assert not connection.is_closed_by_peer
        assert there.receiver.closes == ["not heard for 3 s"]

    play(scene)


@pytest.mark.parametrize(
    ("error", "is_theirs"),
    [
        (ConnectionResetError(errno.ECONNRESET, "reset"), True),
        (BrokenPipeError(errno.EPIPE, "broken pipe"), True),
        (TimeoutError(errno.ETIMEDOUT, "timed out"), False),
        (OSError(errno.EHOSTUNREACH, "no route to host"), False),
        (OSError(errno.ENETDOWN, "network is down"), False),
    ],
)
def test_what_the_kernel_says_of_a_connection_is_the_other_sides_doing_or_the_networks(
    error: OSError, is_theirs: bool
) -> None:
    async def scene(there: Listening) -> None:
        here = Recorder()
        connection = await dial(MAKE, here, "127.0.0.1", there.port, timeout_s=5)
        assert connection._transport is not None
        connection._transport._fatal_error(error)  # type: ignore[attr-defined]  # no such network here
        await here.until(lambda: bool(here.closes))
        assert connection.is_closed_by_peer is is_theirs

    play(scene)


@pytest.mark.parametrize(
    "make",
    [
        connection_factory(b"t" * 32, SCOPE),
        connection_factory(b"s" * 32, Scope(run="run", job_id="43", restart_count=0)),
    ],
    ids=["secret", "job"],
)
def test_dialling_an_agent_that_is_not_ours_is_a_wrong_secret(make: ConnectionFactory) -> None:
    async def scene(there: Listening) -> None:
        here = Recorder()
        with pytest.raises(WrongSecretError, match="does not know this run's secret"):
            await dial(make, here, "127.0.0.1", there.port, timeout_s=5)
        assert [*here.opens, *there.receiver.opens] == []
        assert here.closes == []

    play(scene)


def test_dialling_a_port_that_nobody_listens_on_is_refused() -> None:
    async def scene(there: Listening) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            with pytest.raises(ConnectionRefusedError):
                await dial(MAKE, Recorder(), "127.0.0.1", unused.getsockname()[1], timeout_s=5)

    play(scene)


def hello(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + bytes(32) + body


NONCE = b'{"protocol":1,"nonce":"' + b"00" * 16 + b'"}'


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\0" * 36,
        hello(b"[]"),
        hello(b'{"protocol":1}'),
        hello(NONCE) + hello(b'{"proof":"nonsense"}'),
        hello(NONCE) + hello('{"proof":"é"}'.encode()),
        hello(NONCE) + hello(b'{"proof":"\\ud800"}'),
    ],
)
def test_a_stranger_is_cut_off_and_nobody_hears_of_it(garbage: bytes) -> None:
    async def scene(there: Listening) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", there.port)
        writer.write(garbage)
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
        assert there.receiver.opens == []
        assert there.receiver.closes == []

    play(scene)


def test_a_silent_stranger_is_cut_off() -> None:
    async def scene(there: Listening) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", there.port)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        assert there.receiver.opens == []

    play(scene, make=MAKE_HASTY)


def test_dialling_a_silent_listener_ends_without_a_handshake() -> None:
    async def scene(there: Listening) -> None:
        with (
            socket.create_server(("127.0.0.1", 0)) as silent,
            pytest.raises(NoHandshakeError, match="no handshake in time"),
        ):
            await dial(MAKE_HASTY, Recorder(), "127.0.0.1", silent.getsockname()[1], timeout_s=5)

    play(scene)


def test_a_proof_that_comes_when_the_dial_was_just_given_up_opens_nothing() -> None:
    """The wait for it is cancelled a turn of the loop before the dial can abort the connection."""

    async def scene(there: Listening) -> None:
        here = Recorder()
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: MAKE(Side.DIALLING, here), "127.0.0.1", there.port)
        connection.authenticated.cancel()
        await there.receiver.until(lambda: bool(there.receiver.closes))
        assert here.opens == []
        assert here.closes == []

    play(scene)


def test_an_agent_that_sends_what_is_no_message_is_cut_off() -> None:
    async def scene(there: Listening) -> None:
        here = Recorder()
        connection = await dial(MAKE, here, "127.0.0.1", there.port, timeout_s=5)
        assert connection._transport is not None
        connection._transport.write(connection._session.send({"type": "riddle"}))
        await there.receiver.until(lambda: bool(there.receiver.closes))
        assert there.receiver.closes == ["no message is of type 'riddle'"]

    play(scene)


def test_every_message_is_shown_with_its_peer_and_nothing_of_the_secret() -> None:
    shown: list[str] = []
    secret = b"a secret that is nobody's".ljust(32)
    make = connection_factory(secret, SCOPE, trace=shown.append)

    async def main() -> None:
        loop, there, here = asyncio.get_running_loop(), Recorder(), Recorder()
        server = await loop.create_server(lambda: make(Side.LISTENING, there), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        connection = await dial(make, here, "127.0.0.1", port, timeout_s=5)
        connection.send(Beat(number=7))
        await there.until(lambda: there.messages == [Beat(number=7)])
        there.opens[0].send(Welcome(allocation=1, head="node0"))
        await here.until(lambda: here.messages == [Welcome(allocation=1, head="node0")])
        assert connection._transport is not None
        own_port = connection._transport.get_extra_info("sockname")[1]
        connection.close("done")
        await there.until(lambda: bool(there.closes))
        server.close()
        beat = '{"type": "beat", "number": 7, "heard": 0}'
        welcome = '{"type": "welcome", "allocation": 1, "head": "node0", "is_late": false, "gathers": false}'
        for line in (
            f"sent to 127.0.0.1:{port}: {beat}",
            f"received from 127.0.0.1:{own_port}: {beat}",
            f"sent to 127.0.0.1:{own_port}: {welcome}",
            f"received from 127.0.0.1:{port}: {welcome}",
            f"connection with 127.0.0.1:{port} is over: done",
        ):
            assert line in shown
        assert "proof" not in "".join(shown)
        assert secret.hex() not in "".join(shown)

    asyncio.run(asyncio.wait_for(main(), 30))


def test_what_goes_to_many_members_is_encoded_once_and_nothing_else_is() -> None:
    encoder, stop, other = Encoder(), a_stop("one"), a_stop("other")
    encoded = encoder.encode(stop)
    assert encoder.encode(stop) is encoded
    assert [json.loads(encoder.encode(each))["reason"] for each in (stop, other, stop)] == ["one", "other", "one"]


def a_stop(reason: str) -> Stop:
    return Stop(attempt=1, manner=StopManner.GRACE, reason=reason)
