"""The event loop that takes together what comes within a moment."""

from __future__ import annotations

import asyncio
import selectors
import socket
from collections.abc import Iterator

import pytest

from hpc_elastic.agent.system.event_loop import (
    A_HANDFUL,
    MANY_MEMBERS,
    MOMENT_S,
    AgentEventLoop,
    RestingSelector,
    rest_with,
    run,
)

Wire = tuple[socket.socket, socket.socket]


@pytest.fixture
def wires() -> Iterator[list[Wire]]:
    made = [socket.socketpair() for _ in range(3)]
    yield made
    for wire in made:
        for end in wire:
            end.close()


def selector_of(wires: list[Wire], sleeps: list[float]) -> RestingSelector:
    """While it sleeps, something comes on every wire."""

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        for sending, _ in wires:
            sending.send(b"x")

    selector = RestingSelector(sleep)
    for _, receiving in wires:
        selector.register(receiving, selectors.EVENT_READ)
    return selector


def test_what_comes_while_it_rests_is_found_at_one_look(wires: list[Wire]) -> None:
    sleeps: list[float] = []
    with selector_of(wires, sleeps) as selector:
        selector.moment_s = MOMENT_S
        assert len(selector.select(None)) == len(wires)
    assert sleeps == [MOMENT_S]


def test_it_does_not_rest_if_there_is_work(wires: list[Wire]) -> None:
    sleeps: list[float] = []
    wires[0][0].send(b"x")
    with selector_of(wires, sleeps) as selector:
        selector.moment_s = MOMENT_S
        assert len(selector.select(None)) == 1
        assert len(selector.select(0)) == 1  # as the loop asks while it has more to do
    assert sleeps == []


def test_it_does_not_rest_in_the_middle_of_much_work(wires: list[Wire]) -> None:
    sleeps: list[float] = []
    many = [socket.socketpair() for _ in range(A_HANDFUL + 1)]
    with selector_of(wires, sleeps) as selector:
        for sending, receiving in many:
            selector.register(receiving, selectors.EVENT_READ)
            sending.send(b"x")
        selector.moment_s = MOMENT_S
        assert len(selector.select(None)) == len(many)
        for ends in many:
            selector.unregister(ends[1])
            for end in ends:
                end.close()
        assert selector.select(MOMENT_S / 1000) == []
        assert sleeps == []
        assert len(selector.select(None)) == len(wires)
    assert sleeps == [MOMENT_S]


def test_it_rests_no_longer_than_to_the_next_timer(wires: list[Wire]) -> None:
    sleeps: list[float] = []
    with selector_of(wires, sleeps) as selector:
        selector.moment_s = MOMENT_S
        selector.select(MOMENT_S / 2)
    assert sleeps == [MOMENT_S / 2]


def test_only_who_serves_very_many_members_rests() -> None:
    async def moments() -> list[float]:
        loop, found = asyncio.get_running_loop(), []
        assert isinstance(loop, AgentEventLoop)
        for members in (0, MANY_MEMBERS, MANY_MEMBERS + 1, 0):
            rest_with(members)
            found.append(loop.resting.moment_s)
        return found

    assert run(moments()) == [0, 0, MOMENT_S, 0]
