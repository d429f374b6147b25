"""A node whose part of the world changes gives what it had saved for the one before, for a while, if others ask."""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Callable

import pytest

from hpc_elastic.agent.keeper.channel import Channel, dial_keeper
from hpc_elastic.agent.keeper.fetch import fetch_states
from hpc_elastic.agent.keeper.process import Keeper
from hpc_elastic.frames import send_frame
from hpc_elastic.rundir.records import Endpoint
from hpc_elastic.rundir.state_records import StateVersion
from hpc_elastic.state_memory import MEMORY_NAME
from tests.agent.keeper.scene import SCOPE, SECRET, a_memory, content_of, state_in

called_off: list[Callable[[], None]] = []


def test_a_former_part_is_given_for_its_whole_time_where_the_one_before_it_is_over() -> None:
    timers: list[Callable[[], None]] = []
    port = serve_three_parts(timers, is_source=True)
    former, latest = timers
    former()
    (memory,) = fetch_states(
        dial, [Endpoint(address="127.0.0.1", port=port)], ["part 2"], StateVersion(attempt=2, step=2), 1, 1000
    )
    assert content_of(memory, 2) == bytes([2])
    os.close(memory)
    latest()


def test_a_timer_that_a_later_attempt_has_overtaken_is_called_off() -> None:
    """Each would be a thread for a minute: restarts that follow each other quickly left dozens."""
    timers: list[Callable[[], None]] = []
    serve_three_parts(timers, is_source=True)
    assert (len(timers), called_off) == (2, timers[:1])


@pytest.mark.long
def test_a_former_part_that_nobody_asks_for_takes_no_memory() -> None:
    timers: list[Callable[[], None]] = []
    before = memories_here()
    serve_three_parts(timers, is_source=False)
    assert timers == []
    assert len(memories_here() - before) == 1  # that of the part that it has


def memories_here() -> set[int]:
    """The memories of states that this process has open, by inode; those that nobody has any more are collected."""
    gc.collect()
    links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    return {os.stat(link).st_ino for link in links if os.path.lexists(link) and MEMORY_NAME in os.readlink(link)}


def serve_three_parts(timers: list[Callable[[], None]], *, is_source: bool) -> int:
    """Have a keeper begin three attempts, each with another part; return the port on which it listens."""
    agent, link = socket.socketpair()
    called_off.clear()

    def after(_seconds: float, function: Callable[[], None]) -> Callable[[], None]:
        timers.append(function)
        return lambda: called_off.append(function)

    keeper = Keeper(link, after=after)
    with agent, socket.create_server(("127.0.0.1", 0)) as listener:
        scope = {"run": SCOPE.run, "job_id": SCOPE.job_id, "restart_count": SCOPE.restart_count}
        told = {"do": "serve", "secret": SECRET.hex(), "scope": scope, "rate": None, "most": 0}
        send_frame(agent, told)
        send_frame(agent, {"do": "listen"}, [listener.fileno()])
        version = None
        for attempt in (1, 2, 3):
            memory = a_memory()
            state_in(memory, 0, attempt, bytes([attempt]), attempt=attempt)
            send_frame(agent, {"do": "memory"}, [memory])
            os.close(memory)
            begin = {"do": "begin", "attempt": attempt, "part": f"part {attempt}", "shared": "*", "copies_to": None}
            send_frame(agent, {**begin, "version": version, "is_source": is_source, "takes_copies": True})
            version = [attempt, attempt]
        agent.shutdown(socket.SHUT_WR)
        keeper.serve()
        return int(listener.getsockname()[1])


def dial(address: str, port: int) -> Channel:
    return dial_keeper(address, port, secret=SECRET, scope=SCOPE)
