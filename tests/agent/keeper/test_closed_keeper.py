"""A keeper that is told to take no copies any more, since a process was killed for want of memory, keeps none."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hpc_elastic.agent.keeper.process import Keeper
from hpc_elastic.agent.keeper.transfer import Offer
from hpc_elastic.frames import receive_frame, send_frame
from tests.agent.keeper.scene import SCOPE, SECRET

OFFER = Offer(part="of another node", attempt=1, step=8, lengths=(1000,))


@contextmanager
def serving() -> Iterator[tuple[Keeper, socket.socket]]:
    """A keeper that has begun attempt 1, and its agent's socket."""
    agent, link = socket.socketpair()
    keeper = Keeper(link)
    thread = threading.Thread(target=keeper.serve)
    thread.start()
    try:
        scope = {"run": SCOPE.run, "job_id": SCOPE.job_id, "restart_count": SCOPE.restart_count}
        send_frame(agent, {"do": "serve", "secret": SECRET.hex(), "scope": scope, "rate": None, "most": 1 << 40})
        begin(agent, 1, None, takes_copies=True)
        yield keeper, agent
    finally:
        agent.shutdown(socket.SHUT_WR)
        thread.join()
        keeper.copies.close()
        agent.close()
        link.close()


def begin(agent: socket.socket, attempt: int, version: list[int] | None, *, takes_copies: bool) -> None:
    """Tell the keeper of an attempt, and wait until it has taken notice."""
    told = {"do": "begin", "attempt": attempt, "part": "own", "shared": "*", "copies_to": None, "version": version}
    send_frame(agent, {**told, "is_source": False, "takes_copies": takes_copies})
    send_frame(agent, {"do": "answer"})
    told_of(agent, "is_here")


def told_of(agent: socket.socket, key: str) -> object:
    """What the keeper says next that has this key."""
    while (frame := receive_frame(agent)) is not None:
        message, descriptors = frame
        for descriptor in descriptors:
            os.close(descriptor)
        if key in message:
            return message[key]
    raise AssertionError("the keeper has ended")


@pytest.mark.parametrize("takes_copies", [True, False])
def test_a_copy_that_is_under_way_as_no_more_are_taken_is_not_kept(takes_copies: bool) -> None:
    with serving() as (keeper, agent):
        with keeper.copies.take(OFFER):
            assert told_of(agent, "opened") == OFFER.part
            begin(agent, 2, [OFFER.attempt, OFFER.step], takes_copies=takes_copies)
        assert bool(keeper.copies.held()) is takes_copies
        assert takes_copies or told_of(agent, "freed") == OFFER.part
