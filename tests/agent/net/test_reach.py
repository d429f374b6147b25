"""Why a head cannot be reached, by probes of real sockets on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Iterator

import pytest

from hpc_elastic.agent.net.reach import (
    Answer,
    Explainer,
    Finding,
    Place,
    explain,
    find_answering_port,
    not_resolved,
    probe,
)
from hpc_elastic.agent.net.transport import NoHandshakeError
from hpc_elastic.errors import RendezvousCause
from hpc_elastic.membership.authentication import ProtocolError, WrongSecretError

PORTS = (20000, 32000)
NOWHERE = "192.0.2.1"  # for documentation (RFC 5737): nobody answers


def a_place(address: str = "127.0.0.1", *, is_certain: bool = True) -> Place:
    return Place(head="node1", address=address, port=25000, is_certain=is_certain)


def why(error: OSError | ProtocolError | NoHandshakeError, *others: int, place: Place | None = None) -> Finding:
    return asyncio.run(explain(error, place or a_place(), PORTS, others=others))


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that refuses: nobody listens there, and nobody else gets it."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        yield int(deaf.getsockname()[1])


def an_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def test_a_port_that_is_open_and_one_that_is_not(closed_port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert asyncio.run(probe("127.0.0.1", server.getsockname()[1])) is Answer.ACCEPTED
    assert asyncio.run(probe("127.0.0.1", closed_port)) is Answer.REFUSED


def test_a_port_that_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, socket.socket() as first, socket.socket() as second:
        for client in (first, second):  # the queue is full now: a further SYN is dropped
            client.setblocking(False)
            client.connect_ex(full.getsockname())
        assert asyncio.run(probe("127.0.0.1", full.getsockname()[1], timeout_s=0.2)) is Answer.NOTHING


def test_a_machine_answers_if_one_of_its_ports_accepts_or_refuses(closed_port: int) -> None:
    assert asyncio.run(find_answering_port("127.0.0.1", [closed_port])) == closed_port
    assert asyncio.run(find_answering_port("127.0.0.1", [])) is None


def test_a_port_that_answers_the_next_try_is_not_called_blocked(closed_port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = Place(head="node1", address="127.0.0.1", port=server.getsockname()[1], is_certain=True)
        finding = why(TimeoutError("no answer within 2 s"), closed_port, place=place)
    assert finding.cause is RendezvousCause.SILENT
    assert finding.detail == (
        f"got no answer of node1 (127.0.0.1) on port {place.port}: no answer within 2 s, but it answers now: "
        "packets were lost, or the node was too busy"
    )


def test_other_ports_are_knocked_on_now_and_then_however_often_a_search_fails() -> None:
    elsewhere = a_place(is_certain=False)
    tries = [(a_place(), 0.0), (a_place(), 5.0), (a_place(), 29.0), (a_place(), 31.0), (elsewhere, 32.0)]
    knocks = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        explainer = Explainer(PORTS, others=[server.getsockname()[1]])
        for place, now in tries:
            finding = asyncio.run(explainer.explain(TimeoutError("no answer within 2 s"), place, now))
            assert finding.cause is RendezvousCause.BLOCKED_PORT
            knocks.append(count_connections(server))
    assert knocks == [1, 0, 0, 1, 1]


def count_connections(server: socket.socket) -> int:
    """How many have come since the last look."""
    count = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            server.accept()[0].close()
            count += 1
    return count


def test_nobody_listens() -> None:
    finding = why(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"))
    assert finding == Finding(
        cause=RendezvousCause.REFUSED,
        detail="was refused by node1 (127.0.0.1) on port 25000: nobody listens there",
        head="node1",
        address="127.0.0.1",
        port=25000,
    )


@pytest.mark.parametrize(
    "error", [TimeoutError("no answer within 2 s"), an_error(errno.EHOSTUNREACH)], ids=["dropped", "rejected"]
)
def test_a_port_is_blocked_if_another_one_of_the_machine_answers(error: OSError, closed_port: int) -> None:
    finding = why(error, closed_port)
    assert finding.cause is RendezvousCause.BLOCKED_PORT
    assert finding.detail.startswith("met a blocked port: node1 (127.0.0.1) on port 25000: ")
    assert finding.detail.endswith(
        f", but its port {closed_port} answers; open network.port_range 20000-32000 between the nodes"
    )


def test_there_is_no_route_if_the_machine_answers_on_no_port() -> None:
    finding = why(an_error(errno.EHOSTUNREACH))
    assert finding.cause is RendezvousCause.CANNOT_ROUTE
    assert finding.detail == "cannot route to node1 (127.0.0.1): No route to host"


def test_there_is_no_route_if_nothing_answers() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, socket.socket() as first, socket.socket() as second:
        for client in (first, second):
            client.setblocking(False)
            client.connect_ex(full.getsockname())
        port = full.getsockname()[1]
        error = TimeoutError("no answer within 2 s")
        finding = asyncio.run(explain(error, a_place(), PORTS, others=[port], probe_bound_s=0.05))
    assert finding.cause is RendezvousCause.CANNOT_ROUTE
    assert finding.detail.endswith(f"no answer within 2 s, neither on port 25000 nor on {port}")


def test_without_a_network_no_port_is_asked(closed_port: int) -> None:
    finding = why(an_error(errno.ENETUNREACH), closed_port)
    assert finding.cause is RendezvousCause.CANNOT_ROUTE
    assert finding.detail == "cannot route to node1 (127.0.0.1): Network is unreachable"


def test_a_wrong_proof_is_a_wrong_secret_where_the_head_is_for_sure() -> None:
    finding = why(WrongSecretError("no"))
    assert finding.cause is RendezvousCause.WRONG_SECRET
    assert "authenticated wrongly at node1 (127.0.0.1), port 25000" in finding.detail
    guessed = why(WrongSecretError("no"), place=a_place(is_certain=False))
    assert (guessed.cause, guessed.detail[-29:]) == (RendezvousCause.REFUSED, "another program listens there")


def test_a_stranger_is_another_program() -> None:
    assert why(ProtocolError("a frame is not JSON")).cause is RendezvousCause.REFUSED


def test_no_handshake_is_silence() -> None:
    finding = why(NoHandshakeError("no handshake in time"))
    assert finding.cause is RendezvousCause.SILENT
    assert finding.detail == "got no answer of node1 (127.0.0.1) on port 25000: connected, but no handshake in time"


def test_a_name_that_means_nothing_is_said_in_the_resolvers_words() -> None:
    finding = not_resolved("node1", "Name or service not known")
    assert finding.detail == "cannot resolve node1: Name or service not known"
    assert (finding.cause, finding.address) == (RendezvousCause.CANNOT_RESOLVE, None)
