"""The signal of `signals.notice`: once to each rank process that has a handler, and to no other."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from hpc_elastic.agent.workers.notice_signal import NoticeSignal
from hpc_elastic.processes import has_handler

HANDLES = (
    "import signal, sys; signal.signal(signal.SIGUSR2, lambda *_: None); print('ready', flush=True); sys.stdin.read()"
)
IGNORES = HANDLES.replace("lambda *_: None", "signal.SIG_IGN")
WITHOUT = "import sys; print('ready', flush=True); sys.stdin.read()"


@pytest.mark.parametrize(("source", "expected"), [(HANDLES, True), (IGNORES, False), (WITHOUT, False)])
def test_a_process_has_a_handler_or_not(source: str, expected: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert has_handler(process.pid, signal.SIGUSR2) is expected
        process.communicate()
    assert not has_handler(process.pid, signal.SIGUSR2)  # there is no such process


class Node:
    """Ranks whose process is this one, or a process of another number, and what is done with them."""

    def __init__(self, name: str = "USR2") -> None:
        self.pids = {0: os.getpid(), 1: os.getpid() + (1 << 23)}  # the second is above every process id of Linux
        self.sent: list[tuple[int, signal.Signals]] = []
        self.said: list[str] = []
        self.signal = NoticeSignal(
            name,
            running=lambda: self.pids,
            send=lambda rank, number: self.sent.append((rank, number)),
            say=self.said.append,
            looks_every_s=0.01,
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.005)


def test_only_a_rank_with_a_handler_is_sent_it_and_the_others_are_named_once() -> None:
    async def main() -> None:
        before = signal.signal(signal.SIGUSR2, lambda *_: None)
        try:
            node = Node()
            node.signal.begin()
            await node.until(lambda: bool(node.sent and node.said))
            await asyncio.sleep(0.05)
            node.signal.begin()
            assert node.sent == [(0, signal.SIGUSR2)]
            assert node.said == [
                (
                    "notice: rank 1 has no handler for USR2 (signals.notice), which would end the process: "
                    "it is sent once there is one"
                )
            ]
            await node.signal.end()
        finally:
            signal.signal(signal.SIGUSR2, before)

    asyncio.run(main())


def test_a_rank_that_gets_its_handler_later_is_sent_it_then() -> None:
    async def main() -> None:
        before = signal.signal(signal.SIGUSR2, signal.SIG_DFL)
        try:
            node = Node()
            del node.pids[1]
            node.signal.begin()
            await node.until(lambda: bool(node.said))
            assert not node.sent
            signal.signal(signal.SIGUSR2, lambda *_: None)
            await node.until(lambda: bool(node.sent))
            await node.signal.end()
        finally:
            signal.signal(signal.SIGUSR2, before)

    asyncio.run(main())


def test_a_signal_from_outside_goes_to_the_ranks_with_a_handler_each_time() -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        node = Node("")
        node.signal.pass_on(signal.SIGUSR1)
        node.signal.pass_on(signal.SIGUSR1)
        assert node.sent == [(0, signal.SIGUSR1)] * 2
        said = "got SIGUSR1: sent to rank 0; not to rank 1, which it would end for want of a handler"
        assert node.said == [said] * 2
        node.pids.clear()
        node.signal.pass_on(signal.SIGUSR1)
        assert node.said[2:] == ["got SIGUSR1: no worker runs here"]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_nothing_is_sent_where_nobody_asked_for_a_signal() -> None:
    async def main() -> None:
        node = Node("")
        node.signal.begin()
        await asyncio.sleep(0)
        await node.signal.end()
        assert (node.sent, node.said, node.signal.number) == ([], [], None)

    asyncio.run(main())
