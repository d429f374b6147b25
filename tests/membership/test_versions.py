"""Which versions of software make a node unfit to work with the head's, in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpc_elastic.membership.messages import Join
from hpc_elastic.membership.versions import other_version
from tests.membership.script import a_join

VERSIONS = {"python": "3.11.2", "hpc_elastic": "0.1.0", "torch": "2.13.0+cpu"}


def a_join_with(**versions: str) -> Join:
    return replace(a_join(1), versions={**VERSIONS, **versions})


@pytest.mark.parametrize(
    ("head", "joiner", "remedy"),
    [
        ("2.13.0", "2.9.1", "upgrade torch on node1 to 2.13.0"),
        ("2.9.1+cu126", "2.13.0+cu126", "upgrade torch on node0 to 2.13.0+cu126"),
        ("2.13.0", "not installed", "install torch 2.13.0 on node1"),
        ("2.13.0+cpu", "2.13.0+cu126", "install the same build of torch on both, such as 2.13.0+cu126"),
        ("2.13.0a0+git1", "2.12.1", "upgrade torch on node1 to 2.13.0a0+git1"),
    ],
)
def test_another_torch_is_told_with_the_node_that_has_to_change(head: str, joiner: str, remedy: str) -> None:
    said = other_version("node0", {**VERSIONS, "torch": head}, a_join_with(torch=joiner))
    assert said == f"has another version: torch is {joiner}, on node0 {head}; {remedy}"


def test_no_remedy_is_told_where_the_whole_environment_is_another_one() -> None:
    said = other_version("node0", VERSIONS, a_join_with(torch="2.0", python="3.9.0"))
    assert said is not None
    assert "upgrade" not in said


def test_releases_of_one_python_go_together() -> None:
    assert other_version("node0", VERSIONS, a_join_with(python="3.11.9")) is None
    assert other_version("node0", VERSIONS, a_join_with(python="3.10.2")) is not None


def test_what_only_one_of_the_two_runs_is_not_compared() -> None:
    """The workers of a role that is a command may be anything."""
    join = replace(a_join(1), versions={"python": "3.11.2", "hpc_elastic": "0.1.0"})
    assert other_version("node0", VERSIONS, join) is None
