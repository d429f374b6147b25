"""Nodes of this machine meet each other, and strangers are cut off."""

from __future__ import annotations

import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hpc_elastic.doctor.node.listener import ProbeListener, ask
from hpc_elastic.doctor.node.peers import Neighbourhood
from hpc_elastic.doctor.probes.answers import PeersSeen, ProbeRequest
from hpc_elastic.plan.launch_plan import NetworkPlan
from hpc_elastic.scheduler.allocation import Allocation

NODES = ("local0", "local1", "local2", "local3", "local4", "local5")


def node(folder: Path, node_id: int, count: int, *, meeting_s: float = 20.0) -> Neighbourhood:
    place = Allocation(
        job_id=f"local-{os.getpid()}-1",
        restart_count=0,
        array_task=None,
        node_id=node_id,
        nodes=NODES[:count],
        is_local=True,
    )
    request = ProbeRequest(run=str(folder), folder=str(folder), network=NetworkPlan())
    return Neighbourhood(request, place, meeting_s=meeting_s)


def meet(*nodes: Neighbourhood) -> list[PeersSeen]:
    with ThreadPoolExecutor(len(nodes)) as threads:
        return list(threads.map(Neighbourhood.meet, nodes))


def test_nodes_meet_the_first_one_and_their_neighbours(tmp_path: Path) -> None:
    seen = meet(*(node(tmp_path, each, 6) for each in range(6)))
    assert [[contact.peer for contact in each.contacts] for each in seen[:3]] == [
        ["local1", "local2", "local3"],
        ["local0", "local2", "local3", "local4"],
        ["local0", "local3", "local4", "local5"],
    ]
    assert all(not contact.problem for each in seen for contact in each.contacts)
    assert all(each.offset_s is not None and abs(each.offset_s) < 1 for each in seen[1:])
    assert all(each.visible_s is not None and each.visible_s < 5 for each in seen[1:])
    assert sorted(number for each in seen for number in each.created) == list(range(8))


@pytest.mark.long
def test_a_node_that_never_comes_is_named_by_the_others(tmp_path: Path) -> None:
    seen = meet(node(tmp_path, 0, 3, meeting_s=1.0), node(tmp_path, 1, 3, meeting_s=1.0))
    assert [(contact.peer, contact.cause) for each in seen for contact in each.contacts if contact.problem] == [
        ("local2", "refused"),
        ("local2", "refused"),
    ]


def test_a_node_alone_meets_nobody_and_waits_for_nobody(tmp_path: Path) -> None:
    (seen,) = meet(node(tmp_path, 0, 1))
    assert (seen.contacts, seen.offset_s, len(seen.created)) == ((), None, 8)


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (seen,) = meet(node(tmp_path / "none", 0, 1))
    assert (seen.created, seen.create_problem) == ((), "No such file or directory")


@pytest.fixture
def listener(tmp_path: Path) -> tuple[ProbeListener, tuple[str, int]]:
    listening = socket.create_server(("127.0.0.1", 0))
    return ProbeListener(listening, folder=str(tmp_path), nodes=3), listening.getsockname()


def test_a_listener_answers_three_words(listener: tuple[ProbeListener, tuple[str, int]], tmp_path: Path) -> None:
    _, address = listener
    with socket.create_connection(address, timeout=10) as connection:
        assert float(ask(connection, "clock")) > 1e9
        assert ask(connection, "show 2") == "written"
        assert ask(connection, "met 2") == "met"
    assert [path.name for path in tmp_path.iterdir()] == ["shown-2"]


@pytest.mark.parametrize("word", ["show 3", "show -1", "show ../a", "show", "met x", "", "GET / HTTP/1.1", "a" * 200])
def test_another_word_is_cut_off_and_makes_no_file(
    word: str, listener: tuple[ProbeListener, tuple[str, int]], tmp_path: Path
) -> None:
    _, address = listener
    with socket.create_connection(address, timeout=10) as connection, pytest.raises(ConnectionError):
        ask(connection, word)
    assert list(tmp_path.iterdir()) == []


def test_who_is_connected_is_waited_for_beyond_the_time(listener: tuple[ProbeListener, tuple[str, int]]) -> None:
    answers, address = listener
    with ThreadPoolExecutor(1) as threads:
        with socket.create_connection(address, timeout=10) as connection:
            ask(connection, "clock")
            waiting = threads.submit(answers.wait_until_left, {1}, time.monotonic())
            ask(connection, "met 1")
            assert not waiting.done()
        waiting.result(timeout=10)
