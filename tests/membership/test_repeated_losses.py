"""Nodes that are lost again and again: who is at fault, who is left out of the next attempt, and what is carried on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from hpc_elastic.errors import ExitCode
from hpc_elastic.membership.actions import Action, ClaimAttempt, Note, WriteResult
from hpc_elastic.membership.aside import MOST_LOST_CARRIED_ON, count_lost
from hpc_elastic.membership.decisions import History
from hpc_elastic.membership.lease import MemberLease
from hpc_elastic.membership.losses import Losses
from hpc_elastic.membership.phases import HeadPhase
from hpc_elastic.membership.ranks import assign_worker_ranks
from hpc_elastic.membership.rounds import history_after
from hpc_elastic.membership.succession import LostHead, Succession
from hpc_elastic.membership.timing import Timing
from hpc_elastic.rundir.records import LostNode, SetAside, Spend
from tests.membership.script import HeadScript, a_restart_plan, a_seat, of_kind, the_cause, the_claim

TIMING = Timing(lease_s=9)
LOST_ONCE = History(attempts=3, spend=Spend(node_losses=1), lost_nodes=(LostNode(node="node2", times=1, allocation=1),))


def lose_and_stop(script: HeadScript, lost: Sequence[int], others: Sequence[int]) -> list[Action]:
    """These nodes fall silent in an attempt, the others stop, and the silent ones' fences are waited for."""
    for node in lost:
        script.lose(node, is_gone=False)
    actions = [action for node in others for action in script.stopped(node)]
    return actions + script.pass_time(TIMING.gone_after_heard_s + 1)


def restart_with(script: HeadScript, nodes: Sequence[int]) -> list[Action]:
    """A worker fails, and the next attempt is claimed with whoever is here."""
    script.fail(nodes[0])
    return [action for node in nodes for action in script.stopped(node)]


def members(actions: Sequence[Action]) -> tuple[str, ...]:
    return the_claim(actions).claim.members


def lost_once() -> HeadScript:
    """Node 2 was lost, came back, and is in the attempt that runs."""
    script = HeadScript(3, min_nodes=2)
    script.run()
    lose_and_stop(script, [2], [0, 1])
    script.claimed()
    script.join(2)
    assert "node2" in members(restart_with(script, [0, 1]))
    script.claimed()
    return script


def test_a_node_that_is_lost_once_and_returns_takes_part_again() -> None:
    script = HeadScript(3, min_nodes=2)
    script.run()
    claim = the_claim(lose_and_stop(script, [2], [0, 1])).claim
    assert (claim.lost_nodes, claim.set_aside) == ((LostNode(node="node2", times=1, allocation=1),), ())
    script.claimed()
    script.join(2)
    assert members(restart_with(script, [0, 1])) == ("node0", "node1", "node2")


def test_a_node_that_is_lost_twice_is_left_out_when_it_is_back() -> None:
    script = lost_once()
    actions = lose_and_stop(script, [2], [0, 1])
    claim = the_claim(actions).claim
    assert claim.set_aside == (SetAside(node="node2", why="lost 2 times in this run", allocation=1),)
    (note,) = [note for note in of_kind(actions, Note) if note.name == "node.set_aside"]
    assert note.metadata == {"node": "node2", "reason": "blamed: lost 2 times in this run"}
    script.claimed()
    script.join(2)
    again = restart_with(script, [0, 1])
    assert members(again) == ("node0", "node1")
    assert the_claim(again).claim.spend == Spend(restarts=2, node_losses=2)


def test_a_node_that_was_lost_twice_and_is_back_makes_no_attempt_of_its_own() -> None:
    script = HeadScript(3, min_nodes=2, rejoin="immediately", history=LOST_ONCE)
    script.run()
    assert members(lose_and_stop(script, [2], [0, 1])) == ("node0", "node1")
    script.claimed()
    script.join(2)
    assert script.head.phase is HeadPhase.RUNNING


def test_a_node_that_was_lost_twice_is_used_where_the_others_are_too_few() -> None:
    script = HeadScript(3, min_nodes=3, history=LOST_ONCE)
    script.run()
    assert not of_kind(lose_and_stop(script, [2], [0, 1]), ClaimAttempt)
    claim = the_claim(script.join(2)).claim
    assert (claim.members, [each.node for each in claim.set_aside]) == (("node0", "node1", "node2"), ["node2"])


def test_a_head_that_loses_as_many_nodes_as_are_left_does_not_blame_them() -> None:
    """Its own network may be at fault."""
    script = HeadScript(4, min_nodes=2)
    script.run()
    for _ in range(3):
        claim = the_claim(lose_and_stop(script, [2, 3], [0, 1])).claim
        assert (claim.lost_nodes, claim.set_aside) == ((), ())
        script.claimed()
        script.join(2, 3)
        assert len(members(restart_with(script, [0, 1]))) == 4
        script.claimed()
    assert script.head.charged.spend.node_losses == 6


def test_a_dead_agent_is_a_fault_of_its_node_even_if_as_many_die_as_are_left() -> None:
    losses = Losses(TIMING, 0)
    losses.add("node1", MemberLease(0.0), 1.0, is_gone=True, may_return=False, is_counted=True)
    assert losses.at_fault({"node0"}) == ("node1",)
    losses.returned("node1", 2.0)  # so it was not dead, but its connection was reset
    assert losses.at_fault({"node0", "node1"}) == ()


def test_a_member_that_returns_within_its_time_is_not_at_fault() -> None:
    losses = Losses(TIMING, 0)
    losses.add("node1", MemberLease(0.0), 1.0, is_gone=True, may_return=True, is_counted=True)
    losses.returned("node1", 2.0)
    losses.settle()
    assert losses.at_fault({"node0", "node1", "node2"}) == ()


@pytest.mark.parametrize(("allocation", "used"), [(2, 2), (4, 2), (5, 3)])
def test_a_loss_of_an_earlier_allocation_counts_until_it_is_forgotten(allocation: int, used: int) -> None:
    script = HeadScript(3, min_nodes=2, history=LOST_ONCE, allocation=allocation)
    script.run()
    claim = the_claim(lose_and_stop(script, [2], [0, 1])).claim
    assert (claim.spend.node_losses, len(claim.set_aside)) == (2, 1 if used == 2 else 0)
    script.claimed()
    script.join(2)
    assert len(members(restart_with(script, [0, 1]))) == used


def test_a_successor_knows_of_the_losses_before_it_and_counts_the_head_that_it_has_lost() -> None:
    seats = [a_seat(number) for number in range(3)]
    world = assign_worker_ranks(seats, run="run", attempt=3, allocation=1, head="node2", restarts={})
    lost = LostHead(node="node2", contact=0.0, is_dead=True, why="its agent is gone", attempt=3)
    succession = Succession(lost=lost, world=world, is_finished=False)
    script = HeadScript(3, min_nodes=2, history=LOST_ONCE, succession=succession)
    actions = script.join(0, 1) + script.pass_time(1)
    claim = the_claim(actions).claim
    assert claim.lost_nodes == (LostNode(node="node2", times=2, allocation=1),)
    assert [each.node for each in claim.set_aside] == ["node2"]
    script.claimed()
    script.join(2)
    assert members(restart_with(script, [0, 1])) == ("node0", "node1")


def test_losses_that_end_the_allocation_are_charged_for_the_next_one() -> None:
    script = HeadScript(3, min_nodes=3, history=LOST_ONCE)
    script.run()
    script.lose(2)
    for node in (0, 1):
        script.stopped(node)
    charged = script.head.charged
    assert charged.spend.node_losses == 2
    assert [(each.node, each.times) for each in charged.lost_nodes] == [("node2", 2)]
    assert [each.node for each in charged.set_aside] == ["node2"]


def test_nodes_that_leave_while_the_allocation_ends_are_not_charged() -> None:
    script = HeadScript(3, min_nodes=3)
    script.run()
    script.head.stop_requested("ada@login1", script.now)
    script.lose(2)
    script.lose(1)
    assert (script.head.charged.spend, script.head.charged.lost_nodes) == (Spend(), ())


def test_the_losses_that_are_carried_on_are_bounded_and_the_latest_are_kept() -> None:
    lost: tuple[LostNode, ...] = ()
    for number in range(100):
        lost = count_lost(lost, [f"node{number}", "flapping"], 1)
    assert len(lost) == MOST_LOST_CARRIED_ON
    assert lost[-1] == LostNode(node="flapping", times=100, allocation=1)


def test_a_crash_that_takes_the_heads_node_with_it_each_time_ends_by_the_limit_of_losses() -> None:
    """The failure itself is never charged: its head is killed before it can write. The loss of that head is."""
    history, ended = History(attempts=1), False
    for attempt in range(1, 10):
        nodes = [number for number in range(9) if number >= attempt - 1]
        head = f"node{nodes[0]}"
        seats = [a_seat(number) for number in nodes]
        world = assign_worker_ranks(seats, run="run", attempt=attempt, allocation=1, head=head, restarts={})
        lost = LostHead(node=head, contact=0.0, is_dead=True, why="its agent is gone", attempt=attempt)
        script = HeadScript(
            9,
            min_nodes=1,
            node=f"node{nodes[1]}",
            history=replace(history, attempts=attempt),
            restart=a_restart_plan(max_node_losses=3),
            succession=Succession(lost=lost, world=world, is_finished=False),
        )
        actions = script.join(*nodes[1:]) + script.pass_time(60)
        if ended := bool(of_kind(actions, WriteResult)):
            break
        claim = the_claim(actions).claim
        history = history_after(claim)
        assert claim.spend == Spend(node_losses=attempt)
    assert ended
    assert the_cause(actions) == ("node_losses_used_up", ExitCode.NODE_LOST)
    assert attempt == 4
