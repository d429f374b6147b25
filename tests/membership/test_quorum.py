"""How long a head with too few nodes waits for those that it has lost."""

from __future__ import annotations

from hpc_elastic.membership.actions import Log, Note
from hpc_elastic.membership.decisions import Finish, Trigger
from hpc_elastic.membership.judge import Seen
from hpc_elastic.membership.quorum import QuorumWait
from hpc_elastic.membership.timing import OTHERS_RETURN_WITHIN_S
from tests.membership.script import HeadParts, a_join, of_kind


def short_of_nodes(*, is_gone: bool) -> tuple[HeadParts, QuorumWait]:
    """Of three nodes, of which the run needs two, one is left, and the run is to end."""
    parts = HeadParts(3, min_nodes=2)
    parts.run(3)
    for node in ("node1", "node2"):
        parts.members.lose(node, 1.0, is_gone=is_gone, may_return=False)
    seen = Seen(trigger=Trigger.NODE_LOST, nodes=("node2",), detail="no answer")
    end = parts.judge.decides(seen, 1.0)
    assert isinstance(end, Finish)
    parts.judge.takes(seen, end)
    return parts, QuorumWait(parts.settings, parts.members, parts.judge)


def test_nodes_that_have_fallen_silent_are_waited_for() -> None:
    _, quorum = short_of_nodes(is_gone=False)
    told = quorum.begin(1.0)
    (log,), (note,) = of_kind(told, Log), of_kind(told, Note)
    assert log.text == note.message
    assert log.text.startswith(f"too few nodes are left here; waiting {quorum.until - 1.0:.1f} s for silent ones")
    assert (note.name, note.attempt) == ("run.yielding", 1)
    assert quorum.until > 1.0


def test_dead_nodes_are_not_waited_for() -> None:
    _, quorum = short_of_nodes(is_gone=True)
    assert quorum.begin(1.0) == []
    assert quorum.until <= 1.0


def test_a_run_goes_on_when_enough_nodes_are_back() -> None:
    parts, quorum = short_of_nodes(is_gone=False)
    quorum.begin(1.0)
    assert quorum.resumes(2.0) == []
    parts.join(a_join(1), now=3.0)
    (log,) = of_kind(quorum.resumes(3.0), Log)
    assert log.text == "enough nodes are back: the run goes on"


def test_a_word_of_the_head_that_has_opened_the_latest_attempt_prolongs_the_wait() -> None:
    parts, quorum = short_of_nodes(is_gone=False)
    quorum.begin(1.0)
    until = quorum.until
    quorum.prolong(2.0)
    assert quorum.until == until
    quorum.prolong(until)
    assert quorum.until == until + parts.settings.timing.awaits_return_s


def test_where_one_node_is_back_the_others_have_a_moment_more_but_not_for_ever() -> None:
    """They were lost together, and find this head one after the other."""
    parts = HeadParts(4, min_nodes=4)
    parts.run(4)
    for node in ("node1", "node2", "node3"):
        parts.members.lose(node, 1.0, is_gone=False, may_return=False)
    seen = Seen(trigger=Trigger.NODE_LOST, nodes=("node3",), detail="no answer")
    end = parts.judge.decides(seen, 1.0)
    assert isinstance(end, Finish)
    parts.judge.takes(seen, end)
    quorum = QuorumWait(parts.settings, parts.members, parts.judge)
    quorum.begin(1.0)
    first = quorum.until
    parts.join(a_join(1), now=first - 0.1)
    quorum.adjust(first - 0.1)
    assert quorum.until == first - 0.1 + OTHERS_RETURN_WITHIN_S
    latest = first + parts.settings.timing.returns_within_s
    parts.join(a_join(2), now=latest - 0.1)
    quorum.adjust(latest - 0.1)
    assert quorum.until == latest


def test_the_wait_ends_when_the_last_node_that_might_live_is_back_and_too_few_are_here() -> None:
    """The others are dead."""
    parts = HeadParts(4, min_nodes=4)
    parts.run(4)
    parts.members.lose("node1", 1.0, is_gone=True, may_return=False)
    parts.members.lose("node2", 1.0, is_gone=False, may_return=False)
    seen = Seen(trigger=Trigger.NODE_LOST, nodes=("node1",), detail="no answer")
    end = parts.judge.decides(seen, 1.0)
    assert isinstance(end, Finish)
    parts.judge.takes(seen, end)
    quorum = QuorumWait(parts.settings, parts.members, parts.judge)
    quorum.begin(1.0)
    quorum.adjust(2.0)
    assert quorum.until > 2.0
    parts.join(a_join(2), now=3.0)
    assert quorum.resumes(3.0) == []
    quorum.adjust(3.0)
    assert quorum.until == 3.0
