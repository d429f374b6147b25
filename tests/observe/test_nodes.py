"""Who waits and who is lost, by histories of claims and of what heads noted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hpc_elastic.observe.nodes import AttemptNodes, NodeNote, NodeNotes, find_nodes_beside
from hpc_elastic.rundir.layout import RunLayout
from tests.observe.builders import RunBuilder

ORDER = ("a", "b", "c", "d", "e")


def claim(attempt: int, nodes: str) -> AttemptNodes:
    """The first of the nodes is the head's."""
    return AttemptNodes(attempt=attempt, allocation=1, head=nodes[0], nodes=tuple(nodes))


def joined(attempt: int, head: str, nodes: str) -> list[NodeNote]:
    return [NodeNote(1, attempt, head, node, "node.joined") for node in nodes]


def lost(attempt: int, head: str, nodes: str) -> list[NodeNote]:
    return [NodeNote(1, attempt, head, node, "node.lost") for node in nodes]


def aside(head: str, node: str) -> NodeNote:
    return NodeNote(1, 1, head, node, "node.set_aside", "drained by ada")


def health(node: str, problem: str, attempt: int = 0) -> NodeNote:
    return NodeNote(1, attempt, "a", node, "node.unhealthy" if problem else "node.healthy", problem)


ALL_JOIN = joined(0, "a", "abcde")
# What happened: the claims, the notes, then who waits and who is lost.
HISTORIES: dict[str, tuple[list[AttemptNodes], list[NodeNote], str, str]] = {
    "nobody has come": ([], [], "", ""),
    "before the first attempt all wait": ([], ALL_JOIN, "abcde", ""),
    "the rest waits": ([claim(1, "abc")], ALL_JOIN, "de", ""),
    "who never came does not wait": ([claim(1, "abc")], joined(0, "a", "abcd"), "d", ""),
    "a lost member": ([claim(1, "abc")], [*ALL_JOIN, *lost(1, "a", "b")], "de", "b"),
    "a lost spare": ([claim(1, "abc")], [*ALL_JOIN, *lost(1, "a", "d")], "e", "d"),
    "a spare in its place": ([claim(1, "abc"), claim(2, "adc")], [*ALL_JOIN, *lost(1, "a", "b")], "e", "b"),
    "a lost one is back and waits": (
        [claim(1, "abc"), claim(2, "adc")],
        [*ALL_JOIN, *lost(1, "a", "b"), *joined(2, "a", "b")],
        "be",
        "",
    ),
    "it is back before the next attempt, which has no room for it": (
        [claim(1, "abc"), claim(2, "adc")],
        [*ALL_JOIN, *lost(1, "a", "b"), *joined(1, "a", "b")],
        "be",
        "",
    ),
    "a lost one works again": (
        [claim(1, "abc"), claim(2, "ac"), claim(3, "acb")],
        [*ALL_JOIN, *lost(1, "a", "b"), *joined(2, "a", "b")],
        "de",
        "",
    ),
    "a lost head notes nothing": (
        [claim(1, "abc"), claim(2, "bcd")],
        [*ALL_JOIN, *joined(1, "b", "bcde")],
        "e",
        "a",
    ),
    "a head that is cut off takes everybody for lost, and is wrong": (
        [claim(1, "abc"), claim(2, "bcd")],
        [*ALL_JOIN, *lost(1, "a", "bcde"), *joined(1, "b", "bcde")],
        "e",
        "a",
    ),
    "a node is lost while the attempt is claimed": (
        [claim(1, "abc"), claim(2, "abc")],
        [*ALL_JOIN, *lost(2, "a", "b")],
        "de",
        "b",
    ),
    "it is told as soon as it is cut off": ([claim(1, "abc")], [*ALL_JOIN, *lost(1, "a", "bc")], "de", "bc"),
    "a lost head is back": (
        [claim(1, "abc"), claim(2, "bcd")],
        [*ALL_JOIN, *joined(1, "b", "bcde"), *joined(2, "b", "a")],
        "ae",
        "",
    ),
    "a spare is lost with its head": (
        [claim(1, "abc"), claim(2, "bc")],
        [*ALL_JOIN, *joined(1, "b", "bcd")],
        "d",
        "ae",
    ),
    "it comes later": (
        [claim(1, "abc"), claim(2, "bc")],
        [*ALL_JOIN, *joined(1, "b", "bcd"), *joined(2, "b", "e")],
        "de",
        "a",
    ),
    "it had come to another one that gathered in vain": (
        [claim(1, "abc"), claim(2, "bc")],
        [*ALL_JOIN, *joined(1, "c", "cde"), *joined(1, "b", "bcd")],
        "d",
        "ae",
    ),
    "two heads are lost": (
        [claim(1, "abc"), claim(2, "bcd"), claim(3, "cde")],
        [*ALL_JOIN, *joined(1, "b", "bcde"), *joined(2, "c", "cde")],
        "",
        "ab",
    ),
    "who is set aside is here, and is neither": (
        [claim(1, "abc"), claim(2, "bc")],
        [*ALL_JOIN, aside("a", "a"), aside("a", "d"), *joined(1, "b", "abcde")],
        "e",
        "",
    ),
    "who is set aside can be lost": (
        [claim(1, "abc"), claim(2, "bc")],
        [*ALL_JOIN, aside("a", "b"), *joined(1, "b", "bcde"), *lost(2, "a", "b")],
        "de",
        "ab",
    ),
    "a restart loses nobody": ([claim(1, "abc"), claim(2, "abc")], ALL_JOIN, "de", ""),
    "who is in the world is neither, whatever was noted before": (
        [claim(1, "abc"), claim(2, "abc")],
        [*ALL_JOIN, *lost(1, "a", "b")],
        "de",
        "",
    ),
}


@pytest.mark.parametrize("name", HISTORIES)
@pytest.mark.parametrize("is_reversed", [False, True], ids=["", "the files in the other order"])
def test_history(name: str, is_reversed: bool) -> None:
    claims, notes, spares, gone = HISTORIES[name]
    if is_reversed:  # of two heads: what one head wrote stays in its order
        notes = sorted(notes, key=lambda note: note.head, reverse=True)
    found = find_nodes_beside(claims, notes, ORDER)
    assert (found.spares, found.lost) == (tuple(spares), tuple(gone))


@pytest.mark.parametrize(
    ("claims", "notes", "spares", "left_out"),
    [
        ([claim(1, "abc"), claim(2, "abd")], [*ALL_JOIN, aside("a", "c")], "e", {"c": "drained by ada"}),
        ([claim(1, "abc")], [*ALL_JOIN, health("e", "no space")], "d", {"e": "unhealthy: no space"}),
        ([claim(1, "abc")], [*ALL_JOIN, health("e", "no space"), health("e", "", 1)], "de", {}),
        ([claim(1, "abc")], [*ALL_JOIN, health("b", "no space", 1)], "de", {}),  # it is at work until the next attempt
        ([claim(1, "abc"), claim(2, "acd")], [*ALL_JOIN, health("b", "slow", 1)], "e", {"b": "unhealthy: slow"}),
        ([replace(claim(1, "abc"), blamed={"d": "an Xid"})], ALL_JOIN, "e", {"d": "blamed: an Xid"}),
        ([replace(claim(1, "abc"), blamed={"c": "an Xid"})], ALL_JOIN, "de", {}),  # too few others were here
        ([replace(claim(1, "abc"), blamed={"d": "an Xid"})], [*ALL_JOIN, *lost(1, "a", "d")], "e", {}),
    ],
    ids=[
        "drained",
        "unhealthy",
        "healthy again",
        "unhealthy and still at work",
        "left out of the next world",
        "blamed in an earlier allocation",
        "blamed and used nevertheless",
        "lost as well",
    ],
)
def test_who_is_left_out_is_named_with_the_reason_and_is_no_spare(
    claims: list[AttemptNodes], notes: list[NodeNote], spares: str, left_out: dict[str, str]
) -> None:
    found = find_nodes_beside(claims, notes, ORDER)
    assert (found.spares, found.set_aside) == (tuple(spares), left_out)


def test_notes_are_read_as_they_come_and_torn_ones_when_they_are_whole(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run")
    reader = NodeNotes(run.layout)
    assert reader.read(["node1"]) == []
    run.note("node1", "node.joined", "node1", "node2", attempt=0)
    assert [note.node for note in reader.read(["node1"])] == ["node1", "node2"]
    line = Path(run.layout.events("node1")).read_text().splitlines()[1].replace("node.joined", "node.lost")
    with open(run.layout.events("node1"), "a") as file:
        file.write(line[:40])
        file.flush()
        assert len(reader.read(["node1"])) == 2
        file.write(line[40:] + "\n")
    assert reader.read(["node1"])[2:] == [NodeNote(1, 0, "node1", "node2", "node.lost")]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        '"node.lost"',
        json.dumps({"name": "node.lost", "allocation": 1, "attempt": 1, "metadata": {}}),
        json.dumps({"name": "node.lost", "allocation": 1, "attempt": None, "metadata": {"node": "a"}}),
        json.dumps({"name": "worker.failed", "message": '"node.lost"', "metadata": {"node": "a"}}),
    ],
)
def test_what_is_no_note_of_a_node_is_passed_over(line: str, tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    Path(layout.events("a")).parent.mkdir(parents=True)
    Path(layout.events("a")).write_text(line + "\n")
    assert NodeNotes(layout).read(["a"]) == []


def left_out(allocation: int, head: str, nodes: str) -> list[NodeNote]:
    return [NodeNote(allocation, 0, head, node, "node.left_out", "has given no sign of its agent") for node in nodes]


def test_a_node_that_is_at_work_is_not_left_out_though_a_head_that_was_cut_off_says_so() -> None:
    notes = [
        *joined(0, "a", "a"),
        *left_out(1, "a", "bcd"),
        *(NodeNote(2, 0, "b", node, "node.joined") for node in "b"),
    ]
    beside = find_nodes_beside([claim(1, "bc")], notes, ORDER)
    assert dict(beside.left_out) == {"d": "has given no sign of its agent"}


def test_a_node_is_at_work_though_an_earlier_head_lost_it_while_it_meant_to_claim_the_same_attempt() -> None:
    taken = replace(claim(2, "bcd"), allocation=2)
    notes = [*ALL_JOIN, *lost(2, "a", "bc"), *(NodeNote(2, 1, "b", node, "node.joined") for node in "bcd")]
    beside = find_nodes_beside([claim(1, "abc"), taken], notes, ORDER)
    assert (beside.lost, beside.spares) == (("a", "e"), ())


def test_a_first_head_that_has_not_come_to_the_next_one_is_left_out_and_no_spare() -> None:
    notes = [*left_out(2, "b", "d"), *(NodeNote(2, 0, "b", node, "node.joined") for node in "bc"), *joined(0, "d", "d")]
    beside = find_nodes_beside([claim(1, "bc")], notes, ORDER)
    assert (beside.spares, list(beside.left_out)) == ((), ["d"])
