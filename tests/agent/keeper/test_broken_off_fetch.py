"""A fetch that is broken off does not wait for the machine that was asked."""

from __future__ import annotations

import socket
import threading

import pytest

from hpc_elastic.agent.keeper.channel import Channel, dial_keeper
from hpc_elastic.agent.keeper.fetch import BROKEN_OFF, BreakOff, fetch_states
from hpc_elastic.agent.keeper.transfer import TransferError
from hpc_elastic.membership.authentication import Side
from hpc_elastic.rundir.records import Endpoint
from hpc_elastic.rundir.state_records import StateVersion
from tests.agent.keeper.scene import PART, SCOPE, SECRET

VERSION = StateVersion(attempt=1, step=3)


def dial(address: str, port: int) -> Channel:
    return dial_keeper(address, port, secret=SECRET, scope=SCOPE, stalls_s=60.0)


def test_a_fetch_that_is_broken_off_ends_while_the_other_side_is_silent() -> None:
    breaking, problems = BreakOff(), list[str]()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        holder = Endpoint(address="127.0.0.1", port=listener.getsockname()[1])

        def fetch() -> None:
            try:
                fetch_states(dial, [holder, holder], [PART], VERSION, 2, 1000, breaking)
            except TransferError as error:
                problems.append(str(error))

        fetching = threading.Thread(target=fetch)
        fetching.start()
        accepted, _ = listener.accept()
        channel = Channel(accepted, Side.LISTENING, secret=SECRET, scope=SCOPE)
        assert channel.receive()["do"] == "get"
        breaking.ask()
        fetching.join(20)
        assert not fetching.is_alive()
        channel.close()
    assert len(problems) == 1
    assert problems[0].endswith(BROKEN_OFF)


def test_a_fetch_that_was_broken_off_before_it_began_asks_nobody() -> None:
    breaking = BreakOff()
    breaking.ask()
    with pytest.raises(TransferError, match=BROKEN_OFF):
        fetch_states(dial, [Endpoint(address="127.0.0.1", port=1)], [PART], VERSION, 2, 1000, breaking)
