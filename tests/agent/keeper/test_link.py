"""Keepers as processes: what one node's ranks save is copied to the other node's, and fetched from there."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from subprocess import PIPE

import pytest

from hpc_elastic.agent.keeper.channel import ChannelError
from hpc_elastic.agent.keeper.fetch import fetch_states
from hpc_elastic.agent.keeper.link import ASKS_EVERY_S, KeeperLink, KeeperSettings, KeptAttempt
from hpc_elastic.agent.keeper.transfer import TransferError
from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.rundir.records import Endpoint
from hpc_elastic.rundir.state_records import HeldState, StateVersion
from hpc_elastic.state_memory import COPY_EVERY, map_control
from tests.agent.conftest import PACKAGE
from tests.agent.keeper.scene import PART, SCOPE, SECRET, a_memory, content_of, state_in

OTHER = "0+2/4 0/4 default"
SHARED = "* default"
MEBIBYTE = 1024 * 1024


class Node:
    """A node with its keeper and the memories of two ranks."""

    def __init__(self, part: str, *, most: int = 1 << 30, asks_every_s: float = ASKS_EVERY_S) -> None:
        self.part = part
        self.said: list[str] = []
        self.thread = BackgroundThread("processes", asyncio.get_running_loop())
        settings = KeeperSettings(package_dir=str(PACKAGE), secret=SECRET, scope=SCOPE, rate=None, most=most)
        listener = socket.create_server(("127.0.0.1", 0))
        self.keeper = KeeperLink(
            settings, listener, thread=self.thread, say=self.said.append, asks_every_s=asks_every_s
        )
        self.memories = [a_memory(), a_memory()]

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(address="127.0.0.1", port=self.keeper.port)

    async def begin(
        self, attempt: int, to: Node | None, version: StateVersion | None = None, *, takes_copies: bool = True
    ) -> None:
        told = KeptAttempt(
            attempt=attempt,
            part=self.part,
            shared=SHARED,
            version=version,
            copies_to=None if to is None else to.endpoint,
            takes_copies=takes_copies,
        )
        await self.keeper.begin(told, self.memories)

    def save(self, step: int, *, size: int = MEBIBYTE + 7, is_replicated: bool = False) -> list[bytes]:
        """Save a step on both ranks, or for all on the first."""
        contents = [os.urandom(size) for _ in self.memories]
        for memory, content in list(zip(self.memories, contents, strict=True))[: 1 if is_replicated else None]:
            state_in(memory, step % 4, step, content, is_replicated=is_replicated)
        return contents

    async def until_it_holds(self, *steps: int, part: str = PART) -> None:
        wanted = {HeldState(attempt=1, step=step, part=part, is_copy=True) for step in steps}
        for _ in range(1000):
            if wanted <= set(held := await self.keeper.copies()):
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"{held}; {self.said}")

    def fetch(self, holder: Node, step: int, part: str = PART) -> list[int]:
        version = StateVersion(attempt=1, step=step)
        return fetch_states(self.keeper.dial, [holder.endpoint], [part, SHARED], version, 2, 1 << 30)

    async def close(self) -> None:
        await self.keeper.close()
        for memory in self.memories:
            os.close(memory)


@contextlib.asynccontextmanager
async def two_nodes(asks_every_s: float = ASKS_EVERY_S) -> AsyncIterator[tuple[Node, Node]]:
    nodes = Node(PART, asks_every_s=asks_every_s), Node(OTHER, asks_every_s=asks_every_s)
    try:
        yield nodes
    finally:
        for node in nodes:
            await node.close()


@pytest.mark.long
def test_what_a_lost_node_had_saved_is_fetched_from_its_copy() -> None:
    async def scene() -> None:
        async with two_nodes() as (lost, holder):
            await holder.begin(1, lost)
            await lost.begin(1, holder)
            contents = {}
            for step in (1, 2, 3):
                contents[step] = lost.save(step)
                await holder.until_it_holds(step)
            os.kill(lost.keeper.pids()[0], signal.SIGKILL)
            await holder.until_it_holds(2, 3)
            for step in (2, 3):
                fetched = await asyncio.to_thread(holder.fetch, holder, step)
                assert [content_of(memory, step) for memory in fetched] == contents[step]
                for memory in fetched:
                    os.close(memory)
            with pytest.raises(TransferError, match="has it not"):
                await asyncio.to_thread(holder.fetch, holder, 1)
            assert not holder.said

    asyncio.run(scene())


@pytest.mark.long
def test_a_node_without_memory_for_copies_frees_what_it_has_and_takes_no_more() -> None:
    async def scene() -> None:
        async with two_nodes() as (sending, holding):
            await sending.begin(1, holding)
            await holding.begin(1, sending)
            sending.save(1)
            await holding.until_it_holds(1)
            assert holding.keeper.bytes_taken() >= 2 * MEBIBYTE
            await holding.begin(2, sending, StateVersion(attempt=1, step=1), takes_copies=False)
            assert await holding.keeper.copies() == ()
            await sending.begin(2, holding, StateVersion(attempt=1, step=1))
            await until(lambda: bool(sending.said))
            assert "there is room for 0" in sending.said[0]
            assert (await holding.keeper.copies(), holding.keeper.bytes_taken()) == ((), 0)

    asyncio.run(scene())


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(1000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it does not come to that")


@pytest.mark.long
def test_a_state_that_is_the_same_on_all_ranks_is_fetched_from_any_node() -> None:
    async def scene() -> None:
        async with two_nodes() as (node, spare):
            await node.begin(1, None)
            (content, _) = node.save(4, is_replicated=True)
            assert await node.keeper.copies() == ()  # an answer: it knows of the attempt
            fetched = await asyncio.to_thread(spare.fetch, node, 4, OTHER)
            assert [content_of(memory, 4) for memory in fetched] == [content, None]
            for memory in fetched:
                os.close(memory)

    asyncio.run(scene())


@pytest.mark.long
def test_a_copy_that_was_damaged_where_it_lies_is_not_given_to_a_worker() -> None:
    async def scene() -> None:
        async with two_nodes() as (lost, holder):
            await holder.begin(1, lost)
            await lost.begin(1, holder)
            lost.save(1)
            await holder.until_it_holds(1)
            for path in Path(f"/proc/{holder.keeper.pids()[0]}/fd").iterdir():
                with contextlib.suppress(OSError):
                    damage(path)
            with pytest.raises(TransferError, match="it is damaged"):
                await asyncio.to_thread(holder.fetch, holder, 1)

    asyncio.run(scene())


def damage(path: Path) -> None:
    if "hpc-elastic-state" not in os.readlink(path):
        return
    descriptor = os.open(path, os.O_RDWR)
    for slot in range(2):
        with contextlib.suppress(OSError):
            os.pwrite(descriptor, b"damaged", (slot + 1 << 40) + 1000)
    os.close(descriptor)


@pytest.mark.long
def test_a_keeper_that_was_killed_is_started_again_with_the_next_attempt() -> None:
    async def scene() -> None:
        async with two_nodes() as (node, holder):
            await holder.begin(1, node)
            await node.begin(1, holder)
            (first,) = node.keeper.pids()
            os.kill(first, signal.SIGKILL)
            assert await node.keeper.copies() == ()
            await node.begin(1, holder)
            assert node.keeper.pids() != [first]
            node.save(1)
            await holder.until_it_holds(1)

    asyncio.run(scene())


HUNG = (
    "the keeper of training states does not answer, and is ended; another one is started, with the copies that it had"
)
ENDED = "the keeper of training states has ended; another one is started, with the copies that it had"


@pytest.mark.long
def test_a_keeper_that_hangs_is_replaced_and_no_copy_is_lost() -> None:
    async def scene() -> None:
        async with two_nodes(asks_every_s=0.1) as (node, holder):
            await holder.begin(1, node)
            await node.begin(1, holder)
            contents = node.save(1)
            await holder.until_it_holds(1)
            (frozen,) = holder.keeper.pids()
            pidfd = os.pidfd_open(frozen)
            os.kill(frozen, signal.SIGSTOP)
            ending = select.poll()
            ending.register(pidfd, select.POLLIN)
            assert await asyncio.to_thread(ending.poll, 20_000), "the one that hangs is not ended"
            os.close(pidfd)
            node.save(2)
            await holder.until_it_holds(1, 2)
            assert holder.keeper.pids() != [frozen]
            fetched = await asyncio.to_thread(node.fetch, holder, 1)
            assert [content_of(memory, 1) for memory in fetched] == contents
            for memory in fetched:
                os.close(memory)
            assert holder.said == [HUNG]

    asyncio.run(scene())


@pytest.mark.long
@pytest.mark.parametrize(("signal_number", "line"), [(signal.SIGSTOP, HUNG), (signal.SIGKILL, ENDED)])
def test_what_a_keeper_had_that_does_not_answer_is_counted_all_the_same(
    signal_number: signal.Signals, line: str
) -> None:
    async def scene() -> None:
        async with two_nodes() as (node, holder):
            await holder.begin(1, node)
            await node.begin(1, holder)
            node.save(1)
            await holder.until_it_holds(1)
            os.kill(holder.keeper.pids()[0], signal_number)
            assert await holder.keeper.copies() == (HeldState(attempt=1, step=1, part=PART, is_copy=True),)
            assert holder.said == [line]

    asyncio.run(scene())


@pytest.mark.long
def test_the_agent_keeps_no_memory_of_a_copy_that_its_keeper_has_freed() -> None:
    async def scene() -> None:
        async with two_nodes() as (node, holder):
            await holder.begin(1, node)
            await node.begin(1, holder)
            before = descriptors()
            node.save(1)
            await holder.until_it_holds(1)
            assert descriptors() == before + 2
            await holder.begin(2, node)
            assert await holder.keeper.copies() == ()
            assert descriptors() == before

    asyncio.run(scene())


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


ANSWERS_LATE = """
import socket, sys
sys.path.insert(0, {package!r})
from hpc_elastic.frames import receive_frame, send_frame
link, questions = socket.socket(fileno=0), []
while (frame := receive_frame(link)) is not None:
    if frame[0].get("do") == "copies":
        questions.append(frame[0].get("question"))
    if len(questions) == 2:
        send_frame(link, {{"copies": [["of before", 1, 1]], "question": questions[0]}})
        send_frame(link, {{"copies": [["of now", 2, 2]], "question": questions[1]}})
"""


@pytest.mark.long
def test_an_answer_that_comes_too_late_is_not_taken_for_that_to_the_next_question(tmp_path: Path) -> None:
    (tmp_path / "launch.py").write_text(ANSWERS_LATE.format(package=str(PACKAGE.parent)))

    async def scene() -> None:
        thread, said = BackgroundThread("processes", asyncio.get_running_loop()), list[str]()
        settings = KeeperSettings(package_dir=str(tmp_path), secret=SECRET, scope=SCOPE, rate=None, most=0)
        keeper = KeeperLink(settings, socket.create_server(("127.0.0.1", 0)), thread=thread, say=said.append)
        await keeper.start()
        try:
            assert await keeper.copies() == ()
            assert said == [HUNG, "the keeper of training states does not answer: its copies are not counted"]
            assert await keeper.copies() == (HeldState(attempt=2, step=2, part="of now", is_copy=True),)
        finally:
            await keeper.close()

    asyncio.run(scene())


@pytest.mark.long
def test_how_many_saves_were_copied_in_the_attempt_before_is_no_measure_for_the_next_one() -> None:
    async def scene() -> None:
        async with two_nodes() as (late, node):
            for memory in late.memories:
                map_control(memory)[COPY_EVERY] = 8
            await node.begin(2, late, StateVersion(attempt=1, step=8))
            await late.begin(1, node)
            late.save(8)
            await node.until_it_holds(8)
            assert [map_control(memory)[COPY_EVERY] for memory in node.memories] == [1, 1]

    asyncio.run(scene())


@pytest.mark.long
def test_who_does_not_know_the_secret_gets_no_state() -> None:
    async def scene() -> None:
        async with two_nodes() as (node, stranger):
            await node.begin(1, None)
            node.save(1)
            settings = KeeperSettings(package_dir="", secret=bytes(32), scope=SCOPE, rate=None, most=0)
            listener = socket.create_server(("127.0.0.1", 0))
            other = KeeperLink(settings, listener, thread=stranger.thread, say=print)
            with pytest.raises(ChannelError):
                await asyncio.to_thread(other.dial, "127.0.0.1", node.keeper.port)
            await other.close()

    asyncio.run(scene())


AN_AGENT = """
import asyncio, os, signal, sys
from tests.agent.keeper.test_link import PART, Node

async def agent():
    node = Node(PART)
    await node.begin(1, None)
    assert await node.keeper.copies() == ()
    (pid,) = node.keeper.pids()
    os.kill(pid, signal.SIGSTOP)
    print(pid, flush=True)
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(agent())
"""


@pytest.mark.long
def test_a_keeper_that_is_frozen_ends_with_its_agent_too() -> None:
    command = [sys.executable, "-c", AN_AGENT]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True, cwd=PACKAGE.parent) as agent:
        assert agent.stdin is not None
        assert agent.stdout is not None
        keeper = int(agent.stdout.readline())
        pidfd = os.pidfd_open(keeper)
        agent.stdin.close()
        agent.wait()
    ending = select.poll()
    ending.register(pidfd, select.POLLIN)
    has_ended = bool(ending.poll(5000))
    with contextlib.suppress(ProcessLookupError):
        os.kill(keeper, signal.SIGKILL)
    os.close(pidfd)
    assert has_ended


@pytest.mark.long
def test_a_keeper_ends_with_its_agent_and_needs_little_memory() -> None:
    async def scene() -> None:
        async with two_nodes() as (node, holder):
            await holder.begin(1, node)
            await node.begin(1, holder)
            node.save(1, size=20 * MEBIBYTE)
            await holder.until_it_holds(1)
            pids = [*node.keeper.pids(), *holder.keeper.pids()]
            for pid in pids:
                (anonymous,) = [
                    int(line.split()[1])
                    for line in Path(f"/proc/{pid}/status").read_text().splitlines()
                    if line.startswith("RssAnon:")
                ]
                assert anonymous < 20 * 1024
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)

    asyncio.run(scene())
