"""What a head knows of a member that it has lost."""

from __future__ import annotations

import pytest

from tests.membership.script import HeadParts


def at_work(nodes: int = 3) -> HeadParts:
    parts = HeadParts(nodes, min_nodes=1)
    parts.run(nodes)
    return parts


def test_nothing_is_known_of_a_node_that_is_no_member() -> None:
    assert at_work().members.lose("node7", 1.0, is_gone=True, may_return=False) is None


@pytest.mark.parametrize(
    ("is_gone", "may_return", "expected"),
    [(True, False, (True, False, True)), (True, True, (False, True, False)), (False, False, (False, False, False))],
    ids=["its kernel says that the agent has ended", "a goodbye", "silence"],
)
def test_how_a_member_was_lost_says_whether_its_agent_lives(
    expected: tuple[bool, bool, bool], *, is_gone: bool, may_return: bool
) -> None:
    lost = at_work().members.lose("node1", 0.1, is_gone=is_gone, may_return=may_return)
    assert lost is not None
    assert (lost.is_dead, lost.may_return, lost.has_left) == expected
    assert lost.may_live != lost.is_dead


def test_a_reset_after_a_long_silence_says_nothing_of_the_agent() -> None:
    parts = at_work()
    silent_s = parts.settings.timing.silent_before_reset_s
    lost = parts.members.lose("node1", silent_s, is_gone=True, may_return=False)
    assert lost is not None
    assert lost.may_return


def test_a_reset_soon_after_a_goodbye_says_nothing_of_the_agent() -> None:
    parts = at_work()
    parts.members.lose("node1", 0.1, is_gone=True, may_return=True)
    lost = parts.members.lose("node2", 0.2, is_gone=True, may_return=False)
    assert lost is not None
    assert lost.may_return


def test_a_run_lacks_a_member_of_its_world() -> None:
    parts = at_work()
    lost = parts.members.lose("node1", 0.1, is_gone=True, may_return=False)
    assert lost is not None
    assert parts.members.lacks(lost.entry, is_gathering=False)
