"""What stands between a closed round and the parts of its members."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpc_elastic.errors import ExitCode
from hpc_elastic.membership.actions import ClaimAttempt, Log, Note
from hpc_elastic.membership.decisions import Finish
from hpc_elastic.membership.messages import Assign
from hpc_elastic.membership.notice_rounds import NoticeRounds
from hpc_elastic.membership.notices import NoticeGiven
from hpc_elastic.membership.opening import Opening
from tests.membership.script import DIGEST, HeadParts, a_join, a_restart_plan, of_kind, sent


def opening_of(parts: HeadParts) -> Opening:
    notices = NoticeRounds(parts.members.roster, parts.settings.restarts)
    return Opening(parts.settings, parts.members, parts.judge, notices)


def test_an_attempt_is_claimed_with_the_nodes_that_have_joined_after_what_is_odd_about_them() -> None:
    parts = HeadParts(3, min_nodes=2)
    parts.join(a_join(0), replace(a_join(2), remarks=("it is slow",)))
    *told, claim = opening_of(parts).claim()
    assert isinstance(claim, ClaimAttempt)
    assert (claim.claim.attempt, claim.claim.members) == (1, ("node0", "node2"))
    assert "node2: it is slow" in [log.text for log in of_kind(told, Log)]
    assert parts.members.gathering.has_world


def test_what_is_odd_about_a_node_is_told_with_one_claim_alone() -> None:
    parts = HeadParts(1)
    parts.join(replace(a_join(0), remarks=("it is slow",)))
    opening = opening_of(parts)
    assert of_kind(opening.claim(), Log)
    assert not of_kind(opening.claim(), Log)


def test_a_round_without_losses_and_silent_ends_lets_the_attempt_open() -> None:
    parts = HeadParts(2)
    parts.join(a_join(0), a_join(1))
    assert opening_of(parts).settle(0.0) is None


@pytest.mark.parametrize(("most", "is_end"), [(1, False), (0, True)])
def test_a_member_that_has_said_goodbye_and_is_not_back_counts_as_lost(most: int, *, is_end: bool) -> None:
    parts = HeadParts(2, min_nodes=1, restart=a_restart_plan(max_node_losses=most))
    parts.run(2)
    parts.members.lose("node1", 1.0, is_gone=True, may_return=True)
    assert parts.members.losses.count == 0
    end = opening_of(parts).settle(20.0)
    assert parts.members.losses.count == 1
    assert (isinstance(end, Finish), parts.judge.verdict.decision is end) == (is_end, True)
    if isinstance(end, Finish):
        assert (end.exit_code, end.reason) == (ExitCode.NODE_LOST, "node_losses_used_up")


@pytest.mark.parametrize(("ends", "is_end"), [(4, False), (5, True)])
def test_a_job_that_has_ended_silently_too_often_opens_no_attempt(ends: int, *, is_end: bool) -> None:
    parts = HeadParts(1, silent_ends=ends)
    parts.join(a_join(0))
    end = opening_of(parts).settle(0.0)
    assert isinstance(end, Finish) == is_end
    assert parts.judge.verdict.is_final == is_end


def test_each_member_gets_its_part_of_an_attempt_whose_claim_is_on_disk() -> None:
    parts = HeadParts(2)
    world = parts.run(2)
    told = opening_of(parts).assign(world, DIGEST, 0.0)
    assigned = sent(told, Assign)
    assert {node: (each.attempt, each.first_rank) for node, each in assigned.items()} == {
        "node0": (1, 0),
        "node1": (1, 2),
    }
    assert [note.name for note in of_kind(told, Note)] == ["attempt.opened"]
    assert told.index(of_kind(told, Note)[0]) < len(told) - len(assigned)


def test_a_notice_that_stands_is_part_of_what_members_are_told() -> None:
    parts = HeadParts(1)
    world = parts.run(1)
    notices = NoticeRounds(parts.members.roster, parts.settings.restarts)
    notices.give(NoticeGiven(reason="operator", seconds_left=30.0, by="ada"), 0, 0.0)
    told = Opening(parts.settings, parts.members, parts.judge, notices).assign(world, DIGEST, 10.0)
    (part,) = sent(told, Assign).values()
    assert part.notice == NoticeGiven(reason="operator", seconds_left=20.0, by="ada")
