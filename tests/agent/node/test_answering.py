"""Which machines answer, by real sockets on this one."""

from __future__ import annotations

import socket
import time

from hpc_elastic.agent.node.answering import find_answering


def test_an_address_answers_if_one_of_its_ports_accepts_or_refuses_and_silence_is_waited_for_once() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_server(("127.0.0.2", server.getsockname()[1]), backlog=0) as full,
        socket.socket() as first,
        socket.socket() as second,
    ):
        for client in (first, second):  # the queue is full now: a further SYN is dropped
            client.setblocking(False)
            client.connect_ex(full.getsockname())
        began = time.monotonic()
        addresses = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
        answering = find_answering(addresses, [server.getsockname()[1]], within_s=0.2)
        assert answering == {"127.0.0.1", "127.0.0.3"}
        assert time.monotonic() - began >= 0.2


def test_nobody_is_waited_for_if_all_have_answered() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert find_answering(["127.0.0.1"], [server.getsockname()[1]], within_s=3600) == {"127.0.0.1"}


def test_an_address_without_a_route_does_not_answer() -> None:
    assert find_answering(["255.255.255.255"], [1], within_s=0.05) == set()
