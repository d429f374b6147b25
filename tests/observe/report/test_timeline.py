"""What each node did, as rows of the report."""

from __future__ import annotations

import sys
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.observe.report.timeline import NodeNews, NodeState, TimelineRow, draw_timeline
from hpc_elastic.useful_time.division import AttemptTimes

FIRST = AttemptTimes(number=1, opened=100, started=200, ended=500)
SECOND = AttemptTimes(number=2, opened=600, started=700)


def draw(*news: NodeNews, second: str = "a b", failed: str = "a") -> dict[str, list[tuple[float, NodeState]]]:
    rows = draw_timeline(
        [
            (FIRST, frozenset("ab"), frozenset(failed.split())),
            (SECOND, frozenset(second.split()), frozenset()),
        ],
        [*(NodeNews(at=10, node=node, is_lost=False) for node in "abc"), *news],
        nodes=list("abc"),
        begin=0,
        end=1000,
    )
    return {node: [(each.begin, each.state) for each in row.segments] for row in rows for node in row.nodes}


def test_a_node_waits_starts_runs_and_fails() -> None:
    assert draw()["a"] == [
        (10, NodeState.WAITING),
        (100, NodeState.STARTING),
        (200, NodeState.RUNNING),
        (500, NodeState.FAILED),
        (600, NodeState.STARTING),
        (700, NodeState.RUNNING),
    ]


def test_a_node_without_a_part_is_spare() -> None:
    assert [state for _, state in draw()["c"]][-1] is NodeState.SPARE


def test_a_node_that_is_lost_stays_lost_until_it_comes_back() -> None:
    lost, back = NodeNews(at=480, node="b", is_lost=True), NodeNews(at=800, node="b", is_lost=False)
    assert draw(lost, second="a c")["b"][-1] == (480, NodeState.LOST)
    assert draw(lost, back, second="a c")["b"][-1] == (800, NodeState.WAITING)


def test_nodes_that_did_the_same_have_one_row() -> None:
    nodes = [f"n{number}" for number in range(500)]
    rows = draw_timeline(
        [(FIRST, frozenset(nodes), frozenset({"n7"}))],
        [NodeNews(at=10 + index / 1000, node=node, is_lost=False) for index, node in enumerate(nodes)],
        nodes=nodes,
        begin=0,
        end=1000,
    )
    assert sorted(len(row.nodes) for row in rows) == [1, 499]


@given(
    st.lists(st.tuples(st.floats(-10, 1100), st.sampled_from("abc"), st.booleans()), max_size=8),
    st.sampled_from(["a b", "b c", "a", "a b c"]),
)
def test_segments_of_a_node_never_overlap_and_stay_in_the_run(news: list[tuple[float, str, bool]], second: str) -> None:
    rows: list[TimelineRow] = draw_timeline(
        [(FIRST, frozenset("ab"), frozenset("a")), (SECOND, frozenset(second.split()), frozenset())],
        [NodeNews(at=at, node=node, is_lost=is_lost) for at, node, is_lost in news],
        nodes=list("abc"),
        begin=0,
        end=1000,
    )
    assert sorted(node for row in rows for node in row.nodes) == list("abc")
    for row in rows:
        assert all(before.end <= after.begin for before, after in pairwise(row.segments))
        assert all(0 <= each.begin < each.end <= 1000 for each in row.segments)


def test_what_all_nodes_do_alike_is_found_once_however_many_they_are() -> None:
    nodes = [f"node{number}" for number in range(300)]
    members = frozenset(nodes)
    attempts = [
        (AttemptTimes(number=number, opened=10.0 * number, started=10.0 * number + 1), members, frozenset[str]())
        for number in range(1, 101)
    ]
    news = [NodeNews(at=number / 100, node=node, is_lost=False) for number, node in enumerate(nodes)]
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        rows = draw_timeline(attempts, news, nodes=nodes, begin=0.0, end=1010.0)
    finally:
        sys.setprofile(None)
    assert sum(len(row.nodes) for row in rows) == len(nodes)
    assert calls < 200 * len(nodes)  # of 100 attempts, with 2 states each and several calls for each state
