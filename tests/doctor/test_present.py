"""The table for people and the object for programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_elastic.doctor.judge_nodes import judge_nodes
from hpc_elastic.doctor.present import table, to_object
from hpc_elastic.doctor.results import CheckResult, Severity
from tests.doctor.told import told

GOLDEN = Path(__file__).parent / "broken.txt"


def of_broken() -> dict[str, list[CheckResult]]:
    nodes, request = told("broken")
    return {"On node1, node2, node3, node4": judge_nodes(nodes, request, frozenset())}


def test_the_table_of_a_broken_cluster_is_as_people_read_it() -> None:
    """By its golden: what it says is read by a person when it changes."""
    assert table(of_broken(), 80, has_colours=False) + "\n" == GOLDEN.read_text()


@pytest.mark.parametrize("width", [80, 60, 40, 10])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    lines = table(of_broken(), width, has_colours=False).splitlines()
    assert max(map(len, lines)) <= max(width, 40)


def test_what_nodes_write_does_not_control_the_terminal() -> None:
    bad = CheckResult(
        check="names",
        verdict=Severity.FAIL,
        found="a\x1b[2Jb\nc",
        expected="d\re",
        action="\u202ef",
        key="\x07g",
    )
    text = table({"On \x1b[1mx": [bad]}, 80, has_colours=False)
    assert text.replace("\n", "").isprintable()
    assert r"a\x1b[2Jb\nc" in text


def test_colours_are_on_the_verdict_alone() -> None:
    line = CheckResult(check="names", verdict=Severity.WARN, found="slow")
    assert table({"Here": [line]}, 80, has_colours=True).splitlines()[1] == "\x1b[33mwarn\x1b[0m names        slow"


def test_the_object_has_every_line_and_the_worst_verdict() -> None:
    groups = of_broken()
    shown = to_object(groups, site="here", job_id="7", nodes=("node1", "node2"))
    assert {name: shown[name] for name in ("format_version", "site", "job_id", "nodes", "verdict")} == {
        "format_version": 1,
        "site": "here",
        "job_id": "7",
        "nodes": ["node1", "node2"],
        "verdict": "fail",
    }
    assert len(shown["checks"]) == sum(map(len, groups.values()))
    keys = {"check", "verdict", "found", "expected", "action", "key", "nodes"}
    assert all(each.keys() == keys for each in shown["checks"])


def test_nothing_to_tell_is_told() -> None:
    assert to_object({}, site="here", job_id=None, nodes=())["verdict"] == "ok"
    assert table({"Here": []}, 80, has_colours=False) == "\n"
