"""What the benchmark reads of the training's stamps, and of the agents' events."""

from __future__ import annotations

from benchmarks.restart.faults import moments_of
from benchmarks.restart.jobs import inner_pid
from benchmarks.restart.moments import Trained, newest_group, parse

TEXT = "1 2\nbegan 10.5\nfirst_line 10.6\nimported 11.5\njoined 12.0\nstepped 12.5\nraised 20.25\n"


def trained(rank: int, joined: float, stepped: float, *, ranks: int = 2) -> Trained:
    return Trained("node1", 7, rank, ranks, {"joined": joined, "stepped": stepped})


def test_stamps_are_read_by_name() -> None:
    found = parse("node-a-12-10.6.moments", TEXT)
    assert found is not None
    assert (found.node, found.pid, found.rank, found.world_size) == ("node-a", 12, 1, 2)
    assert found.moments["stepped"] == 12.5
    assert found.moments["raised"] == 20.25


def test_a_process_without_a_step_has_not_trained() -> None:
    assert parse("node1-12-10.6.moments", TEXT.partition("stepped")[0]) is None
    assert parse("node1-12-10.6.moments", "") is None


def test_a_torn_line_is_passed_over() -> None:
    assert parse("node1-12-10.6.moments", TEXT.partition("stepped 12")[0] + "stepped 12") is None
    found = parse("node1-12-10.6.moments", TEXT.removesuffix("5\n"))
    assert found is not None
    assert "raised" not in found.moments


def test_a_group_is_whole() -> None:
    assert newest_group([trained(0, 1.0, 2.0)], 2) is None
    group = newest_group([trained(1, 1.5, 2.0), trained(0, 1.0, 2.5)], 2)
    assert group is not None
    assert [one.rank for one in group.processes] == [0, 1]
    assert (group.first("stepped"), group.last("stepped"), group.last("joined")) == (2.0, 2.5, 1.5)


def test_a_group_is_of_one_attempt() -> None:
    """Rank 0 of the attempt before, and rank 1 of one whose rank 0 has not stamped its step yet."""
    assert newest_group([trained(0, 1.0, 2.0), trained(1, 1.0, 2.0), trained(1, 5.0, 6.0)], 2) is None


def test_a_group_of_another_size_is_none() -> None:
    assert newest_group([trained(0, 1.0, 2.0, ranks=3), trained(1, 1.0, 2.0, ranks=3)], 2) is None


def event(name: str, second: float, node: str = "node1") -> dict[str, object]:
    return {"name": name, "time_ns": int(second * 1e9), "node": node}


def test_events_are_those_after_the_fault() -> None:
    events = [
        event("worker.exited", 90.0, "node4"),
        event("attempt.started", 80.0),
        event("worker.exited", 100.25, "node2"),  # it lost its peer
        event("worker.exited", 100.5, "node4"),
        event("attempt.failed", 100.75),
        event("attempt.opened", 101.0),
        event("workers.started", 102.0, "node2"),
        event("workers.started", 101.5, "node4"),
    ]
    found = moments_of(events, 100.0, "node4")
    assert found == {"detected": 100.5, "decided": 100.75, "opened": 101.0, "started": 102.0}
    assert moments_of([*events, event("attempt.started", 103.0)], 100.0, "node4")["complete"] == 103.0


def test_the_process_id_on_the_node_is_the_innermost() -> None:
    assert inner_pid("Name:\tpython\nNSpid:\t4711\t12\nThreads:\t1\n") == 12
