"""What the head asks of the scheduler about members that have fallen silent, by scripts."""

from __future__ import annotations

from hpc_elastic.membership.actions import Action, AskScheduler, ClaimAttempt
from hpc_elastic.membership.timing import ASKS_SCHEDULER_EVERY_S
from tests.membership.script import HeadScript, of_kind

LEASE_S = 600.0


def running(*, lease_s: float = LEASE_S, nodes: int = 4) -> HeadScript:
    script = HeadScript(nodes, min_nodes=2, lease_s=lease_s)
    script.run()
    return script


def asked(actions: list[Action]) -> list[tuple[str, ...]]:
    return [question.nodes for question in of_kind(actions, AskScheduler)]


def test_the_scheduler_is_asked_once_of_a_member_that_is_silent_for_half_a_lease() -> None:
    script = running()
    script.beating.discard(2)
    assert asked(script.pass_time(LEASE_S / 2 - 1)) == []
    assert asked(script.pass_time(LEASE_S / 2)) == [("node2",)]


def test_nobody_is_asked_while_all_are_heard() -> None:
    assert asked(running().pass_time(10 * LEASE_S)) == []


def test_a_member_that_was_heard_again_and_falls_silent_again_is_asked_about_again() -> None:
    script = running()
    for _ in range(2):
        script.beating.discard(2)
        assert asked(script.pass_time(LEASE_S * 0.7)) == [("node2",)]
        script.beating.add(2)
        assert asked(script.pass_time(LEASE_S * 0.7)) == []


def test_a_member_that_is_heard_for_a_moment_between_two_questions_is_asked_about_again() -> None:
    script = running(lease_s=30)
    script.beating.discard(2)
    assert asked(script.pass_time(20)) == [("node2",)]
    script.beating.add(2)
    assert asked(script.pass_time(6)) == []
    script.beating.discard(2)
    assert asked(script.pass_time(29)) == [("node2",)]


def test_nodes_that_fall_silent_soon_after_each_other_are_two_questions_half_a_minute_apart() -> None:
    script = running(lease_s=120)
    script.beating.discard(2)
    assert asked(script.pass_time(55)) == []
    script.beating.discard(3)
    actions, moments = [], []
    while script.now < 118:
        if found := asked(script.pass_time(1)):
            actions += found
            moments.append(script.now)
    assert actions == [("node2",), ("node2", "node3")]
    assert moments[1] - moments[0] >= ASKS_SCHEDULER_EVERY_S


def test_with_a_short_lease_nobody_is_asked() -> None:
    script = running(lease_s=29)
    script.beating.discard(2)
    assert asked(script.pass_time(60)) == []


def test_a_spare_that_is_silent_is_no_question() -> None:
    script = HeadScript(3, min_nodes=2, max_nodes=2, lease_s=LEASE_S)
    script.run()
    script.beating.discard(2)
    assert asked(script.pass_time(2 * LEASE_S)) == []


def test_a_node_that_the_scheduler_has_given_up_is_lost_at_once_and_has_fenced_before_the_next_attempt() -> None:
    script = running()
    script.beating.discard(2)
    silent_since = script.now
    script.pass_time(LEASE_S * 0.6)
    script.lose(2, is_gone=False)
    actions = [action for node_id in (0, 1, 3) for action in script.stopped(node_id)]
    while not of_kind(actions, ClaimAttempt):
        actions += script.pass_time(1)
    assert LEASE_S * 2 / 3 <= script.now - silent_since < LEASE_S * 0.7
