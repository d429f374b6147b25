"""Unauthenticated clients at a listener, in any number and of any kind, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import struct
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator

import pytest

from hpc_elastic.agent.net.listener import (
    ACCEPTED_A_TURN,
    FILES_A_WORKER,
    FILES_BESIDE,
    PAUSES_FOR_S,
    UNAUTHENTICATED,
    Listener,
    allow_connections,
    most_unauthenticated,
)
from hpc_elastic.agent.net.rate_limit import LINES
from hpc_elastic.agent.net.transport import Connection, ConnectionFactory, Receiver, connection_factory, dial
from hpc_elastic.agent.node.network import listen
from hpc_elastic.membership.authentication import NONCE_BYTES, Session, Side
from hpc_elastic.membership.messages import Beat
from tests.agent.net.test_transport import MAKE, SCOPE, Recorder

MOST = 20


class Scene:
    """A listener for few unauthenticated clients, what it said, and who got in."""

    def __init__(self, most: int = MOST, make: ConnectionFactory = MAKE) -> None:
        self.receiver = Recorder()
        self.said: list[str] = []
        self.dialled: list[Connection] = []
        listener = listen("127.0.0.1", 0)
        self.port = int(listener.getsockname()[1])
        self.listener = Listener(listener, make, self.receiver, most=most, say=self.said.append)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Lets the loop turn until something is so; each turn is a system call, so this is no busy wait for long."""
        deadline = asyncio.get_running_loop().time() + 20
        while not condition():
            assert asyncio.get_running_loop().time() < deadline, (self.said, self.listener.unauthenticated)
            await asyncio.sleep(0.001)

    async def dial(self, receiver: Recorder) -> Connection:
        connection = await dial(MAKE, receiver, "127.0.0.1", self.port, timeout_s=5)
        self.dialled.append(connection)
        return connection

    async def end(self) -> None:
        """Hangs up on everybody, and waits until all have noticed."""
        await self.listener.close()
        for connection in self.dialled:
            connection.abort("the scene is over")
        await self.until(lambda: self.listener.unauthenticated == 0)
        await self.receiver.until(lambda: len(self.receiver.closes) == len(self.receiver.opens))

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port))


def play(play_scene: Callable[[Scene], Awaitable[None]], *, most: int = MOST, make: ConnectionFactory = MAKE) -> None:
    """Plays a scene; an exception in a callback, which ends an agent, fails it, and so does a socket that stays."""

    async def main() -> None:
        troubles: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context))
        scene = Scene(most, make)
        await asyncio.wait_for(play_scene(scene), 60)
        await scene.end()
        assert troubles == []

    asyncio.run(main())


def is_hung_up(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(100) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_the_oldest_unauthenticated_client_goes_for_a_new_one_and_agents_are_never_hung_up_on() -> None:
    async def scene(made: Scene) -> None:
        member = Recorder()
        connection = await made.dial(member)
        with contextlib.ExitStack() as stack:
            unauthenticated = [stack.enter_context(made.connect()) for _ in range(3 * MOST)]
            await made.until(lambda: sum(map(is_hung_up, unauthenticated)) == 2 * MOST)
            assert made.listener.unauthenticated == MOST
            assert [is_hung_up(client) for client in unauthenticated] == [True] * 2 * MOST + [False] * MOST
            assert len(made.said) == LINES
            assert all("others came before it had authenticated" in line for line in made.said)
            late = Recorder()
            await made.dial(late)  # in spite of a full house
            connection.send(Beat(number=1))
            await made.receiver.until(lambda: made.receiver.messages == [Beat(number=1)])
            assert [member.closes, late.closes, made.receiver.closes] == [[], [], []]

    play(scene)


def test_slow_unauthenticated_clients_have_the_time_of_a_handshake_in_all() -> None:
    async def scene(made: Scene) -> None:
        with made.connect() as slow:
            hello = Session(Side.DIALLING, secret=b"x", scope=SCOPE, nonce=bytes(NONCE_BYTES)).open()
            with contextlib.suppress(ConnectionError):
                for position in range(len(hello) - 1):
                    slow.send(hello[position : position + 1])
                    await asyncio.sleep(0.005)
            await made.until(lambda: is_hung_up(slow))
        await made.until(lambda: made.listener.unauthenticated == 0)
        assert [line.partition(": ")[2] for line in made.said] == ["no handshake in time"]

    play(scene, make=connection_factory(b"s" * 32, SCOPE, handshake_bound_s=0.1))


def test_who_hangs_up_is_not_worth_a_line() -> None:
    async def scene(made: Scene) -> None:
        for _ in range(10):
            made.connect().close()
        await made.until(lambda: made.listener.unauthenticated == 0)
        await made.dial(Recorder())
        assert made.said == []

    play(scene)


def test_a_refused_client_is_named_with_the_reason() -> None:
    async def scene(made: Scene) -> None:
        with made.connect() as client:
            host, port = client.getsockname()
            client.send(b"GET / HTTP/1.1\r\n\r\n")
            await made.until(lambda: bool(made.said))
        assert made.said == [f"refused {host}:{port}: a frame of 1195725856 bytes is over the limit of 512"]

    play(scene)


def test_a_frame_that_was_tampered_with_ends_the_connection_with_a_line() -> None:
    async def scene(made: Scene) -> None:
        connection = await made.dial(Recorder())
        assert connection._transport is not None
        genuine = connection._session.send({"type": "beat", "number": 1})
        connection._transport.write(genuine)
        await made.receiver.until(lambda: bool(made.receiver.messages))
        connection._transport.write(genuine)
        await made.receiver.until(lambda: bool(made.receiver.closes))
        assert made.receiver.messages == [Beat(number=1)]
        assert [line.partition(": ")[2] for line in made.said] == [
            "a frame was changed, dropped or repeated on its way"
        ]

    play(scene)


def reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def test_a_flood_of_every_kind_keeps_nobody_out() -> None:
    async def scene(made: Scene) -> None:
        member = Recorder()
        connection = await made.dial(member)
        highest, held = 0, []
        for number in range(600):
            client = made.connect()
            kind = number % 5
            with contextlib.suppress(ConnectionError):
                if kind == 0:
                    client.send(os.urandom(number))
                elif kind == 1:
                    wrong = Session(Side.DIALLING, secret=b"w" * 32, scope=SCOPE, nonce=os.urandom(NONCE_BYTES))
                    client.send(wrong.open() * (1 + number % 3))
                elif kind == 2:
                    client.shutdown(socket.SHUT_WR)
            if kind == 3:
                reset(client)
            else:
                held.append(client)
            if number % 20 == 0:
                connection.send(Beat(number=number))
                await asyncio.sleep(0)
            highest = max(highest, made.listener.unauthenticated)
        await made.receiver.until(lambda: len(made.receiver.messages) == 30)
        await made.dial(Recorder())
        assert highest <= MOST
        assert (member.closes, made.receiver.closes) == ([], [])
        assert len(made.said) == LINES
        for client in held:
            client.close()

    play(scene)


OUT_OF_FILES = """
import asyncio, resource, socket
from tests.agent.net.test_listener import MOST, Beat, Recorder, Scene, play

async def scene(made):
    member = Recorder()
    connection = await made.dial(member)
    unauthenticated = [socket.socket() for _ in range(2 * MOST)]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (unauthenticated[-1].fileno() + MOST, hard))
    for client in unauthenticated:
        client.connect(("127.0.0.1", made.port))
    await made.until(lambda: any("Too many open files" in line for line in made.said))
    connection.send(Beat(number=1))
    await made.receiver.until(lambda: made.receiver.messages == [Beat(number=1)])
    for client in unauthenticated:
        client.close()
    await made.dial(Recorder())
    assert member.closes == []
    print("let in")

play(scene, most=10 * MOST)
"""


@pytest.mark.long
def test_if_files_run_out_unauthenticated_clients_go_and_the_agent_lives() -> None:
    done = subprocess.run(
        [sys.executable, "-c", OUT_OF_FILES], capture_output=True, text=True, timeout=120, cwd=os.getcwd()
    )
    assert (done.stdout, done.returncode) == ("let in\n", 0), done.stderr


def test_a_closed_listener_hangs_up_on_unauthenticated_clients_and_refuses_the_next() -> None:
    async def scene(made: Scene) -> None:
        with made.connect() as client:
            await made.until(lambda: made.listener.unauthenticated == 1)
            await made.listener.close()
            await made.until(lambda: is_hung_up(client))
        with pytest.raises(ConnectionRefusedError):
            made.connect()
        assert made.said == []

    play(scene)


def test_a_client_that_is_accepted_as_the_listener_closes_is_hung_up_on() -> None:
    """Its task is cancelled before the first step; a socket that nobody closes is a warning of Python's."""
    accepted: list[asyncio.Future[None]] = []

    def make(side: Side, receiver: Receiver) -> Connection:
        accepted[0].set_result(None)  # who waits for it goes on before the task of this connection
        return MAKE(side, receiver)

    async def scene(made: Scene) -> None:
        accepted.append(asyncio.get_running_loop().create_future())
        with made.connect() as client:
            await accepted[0]
            await made.listener.close()
            await made.until(lambda: is_hung_up(client))
        await made.until(lambda: made.listener.unauthenticated == 0)

    play(scene, make=make)


def test_there_is_room_for_every_agent_but_not_for_more_than_files_allow() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert most_unauthenticated(4) == min(UNAUTHENTICATED + 4, soft // 2)
    assert most_unauthenticated(10**6) == soft // 2
    assert most_unauthenticated(4) >= 4 * ACCEPTED_A_TURN
    assert PAUSES_FOR_S < 1  # a member may be among those who wait outside


@pytest.fixture
def low_limit() -> Iterator[int]:
    """The usual soft limit of open files, in the place of this process's own; gives the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_low_limit_of_open_files_makes_room_for_every_agent(low_limit: int) -> None:
    agents = min(4096, low_limit - UNAUTHENTICATED - FILES_BESIDE)
    allow_connections(agents)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (agents + UNAUTHENTICATED + FILES_BESIDE, low_limit)


def test_a_low_limit_of_open_files_makes_room_for_a_worker_on_each_of_many_cpus(low_limit: int) -> None:
    allow_connections(2, workers=8)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (1024, low_limit)
    allow_connections(2, workers=256)
    files = 2 + UNAUTHENTICATED + FILES_BESIDE + 256 * FILES_A_WORKER
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(files, low_limit), low_limit)


def test_the_limit_of_open_files_stays_within_the_hard_one_and_is_never_lowered(low_limit: int) -> None:
    allow_connections(4)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (1024, low_limit)
    allow_connections(10**9)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (low_limit, low_limit)
