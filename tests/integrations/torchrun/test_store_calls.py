"""Calls of a real TCPStore that would wait for ever, and what is left of them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from hpc_elastic.agent.node.network import listen
from hpc_elastic.integrations.torchrun.attempt_store import CONNECT_TIMEOUT, open_attempt_store
from hpc_elastic.integrations.torchrun.exchange import Exchange, Round, StoppedError
from hpc_elastic.integrations.torchrun.store_calls import StoreCalls
from hpc_elastic.membership.messages import StopManner
from hpc_elastic.rundir.records import Endpoint
from tests.integrations.torchrun.test_exchange import a_round

AT_ONCE_S = 5.0  # on a busy machine; all waits here are minutes without a stop


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    made = listen("127.0.0.1", 0)
    yield made
    made.close()


def offered(listener: socket.socket, *, is_served_here: bool) -> tuple[Exchange, Round]:
    exchange = Exchange()
    master = Endpoint(address="127.0.0.1", port=listener.getsockname()[1])
    exchange.offer(
        Round(assign=replace(a_round().assign, master=master), listener=listener if is_served_here else None)
    )
    return exchange, exchange.next_round()


def test_a_call_that_waits_for_a_key_ends_with_the_round_and_leaves_no_thread(listener: socket.socket) -> None:
    pytest.importorskip("torch")
    exchange, current = offered(listener, is_served_here=True)
    calls = StoreCalls(exchange)
    store = open_attempt_store(exchange, calls, current, finish=lambda: None)
    store.set("torchelastic/role_info/0", b"mine")
    threading.Timer(0.2, exchange.stop, [StopManner.FENCE]).start()
    assert store.multi_get(["torchelastic/role_info/0", "torchelastic/role_info/1"]) == [b"mine", b"mine"]
    assert calls.close(AT_ONCE_S)


@pytest.mark.long
@pytest.mark.parametrize("is_closed", [False, True])
def test_a_connect_to_a_store_that_never_answers_ends_with_the_round_and_its_thread_later(
    listener: socket.socket, is_closed: bool
) -> None:
    pytest.importorskip("torch")
    exchange, current = offered(listener, is_served_here=False)  # its kernel takes connections, and nobody answers
    calls = StoreCalls(exchange)

    def end() -> None:
        if is_closed:  # its node has left
            listener.close()
        exchange.stop(StopManner.FENCE)

    threading.Timer(0.5, end).start()
    with pytest.raises(StoppedError):
        open_attempt_store(exchange, calls, current, finish=lambda: None)
    assert calls.close(2 * CONNECT_TIMEOUT.total_seconds() + AT_ONCE_S)


def test_nobody_at_the_port_is_an_error_of_the_round(listener: socket.socket) -> None:
    pytest.importorskip("torch")
    exchange, current = offered(listener, is_served_here=False)
    listener.close()
    with pytest.raises(ConnectionRefusedError):
        open_attempt_store(exchange, StoreCalls(exchange), current, finish=lambda: None)
