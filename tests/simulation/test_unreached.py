"""Nodes that cannot reach the first head from the start: it goes on without them, or one of them takes its place."""

from __future__ import annotations

from unittest import mock

import pytest

from hpc_elastic.agent.rendezvous.relief import HeadRelief
from hpc_elastic.membership.gathering import Gathering
from tests.simulation.draws.unreached import draw_unreached
from tests.simulation.rules.invariants import BrokenRuleError
from tests.simulation.scenario import Fault, Role, Scenario
from tests.simulation.world import SimulatedRun

FOR_EVER_S = 1e6
OTHERS = ("node1", "node2", "node3")


def play(*sides: tuple[int, ...], least: int, join_timeout_s: float = 200.0) -> SimulatedRun:
    role = Role(name="trainer", restart="restart_all", nodes_min=least, nodes_max=4, workers=(1,), work_s=5.0)
    cuts = tuple(Fault(what="partition", side=side, lasts_s=FOR_EVER_S) for side in sides)
    run = SimulatedRun(
        Scenario(seed=1, roles=(role,), nodes=4, lease_s=3.0, join_timeout_s=join_timeout_s, faults=cuts)
    )
    run.play()
    return run


@pytest.mark.parametrize("least", [2, 3])
def test_nodes_that_are_enough_go_on_without_a_first_head_that_none_of_them_reaches(least: int) -> None:
    run = play((0,), least=least)
    assert [result.reason for result in run.disk.results] == ["succeeded"]
    (claim,) = run.disk.claims.values()
    assert claim.members == OTHERS
    assert [allocation.relieves for allocation in run.disk.allocations] == ["", "node0"]


@pytest.mark.parametrize(("side", "least", "reason"), [((0, 1), 2, "succeeded"), ((0, 1), 3, "nodes_missing")])
def test_a_first_head_that_reaches_as_many_nodes_as_go_on_is_not_relieved(
    side: tuple[int, ...], least: int, reason: str
) -> None:
    run = play(side, least=least)
    assert [result.reason for result in run.disk.results] == [reason]
    assert [allocation.node for allocation in run.disk.allocations] == ["node0"]


def test_a_head_that_others_relieve_in_vain_goes_on_with_a_node_that_is_late() -> None:
    """Of the nodes that cannot reach it none reaches another."""
    role = Role(name="trainer", restart="restart_all", nodes_min=2, nodes_max=4, workers=(1,), work_s=5.0)
    cuts = (Fault(what="partition", side=(node,), lasts_s=FOR_EVER_S) for node in (1, 2))
    late = Fault(what="starts_late", node=3, lasts_s=60.0)
    run = SimulatedRun(
        Scenario(seed=1, roles=(role,), nodes=4, join_timeout_s=200.0, join_retries=0, faults=(*cuts, late))
    )
    run.play()
    assert [result.reason for result in run.disk.results] == ["succeeded"]
    (claim,) = run.disk.claims.values()
    assert claim.members == ("node0", "node3")
    assert len(run.disk.allocations) == 2


def test_nodes_that_are_enough_go_on_without_one_that_never_comes_to_the_first_head() -> None:
    role = Role(name="trainer", restart="restart_all", nodes_min=2, nodes_max=4, workers=(1,), work_s=5.0)
    faults = Fault(what="partition", side=(0,), lasts_s=FOR_EVER_S), Fault(what="never_starts", node=3)
    run = SimulatedRun(Scenario(seed=1, roles=(role,), nodes=4, join_timeout_s=200.0, join_retries=0, faults=faults))
    run.play()
    assert [result.reason for result in run.disk.results] == ["succeeded"]
    (claim,) = run.disk.claims.values()
    assert claim.members == ("node1", "node2")


def test_where_no_node_reaches_another_two_heads_try_and_the_second_ends_the_run() -> None:
    run = play((0,), (1,), (2,), least=2)
    assert [result.reason for result in run.disk.results] == ["nodes_missing"]
    first, second = run.disk.allocations
    assert (first.node, second.relieves) == ("node0", "node0")
    assert run.clock.now < 200.0  # all have said why they do not join, so nobody is waited for


def test_a_first_head_that_has_a_role_of_its_own_is_not_relieved_while_it_waits_for_a_node_that_is_late() -> None:
    trainer, actors = (
        Role(name=name, restart="restart_all", nodes_min=least, nodes_max=most, workers=(1,), work_s=5.0)
        for name, least, most in (("trainer", 1, 1), ("actor", 0, 3))
    )
    faults = Fault(what="partition", side=(0,), lasts_s=FOR_EVER_S), Fault(what="starts_late", node=2, lasts_s=60.0)
    run = SimulatedRun(
        Scenario(seed=1, roles=(trainer, actors), nodes=4, join_timeout_s=200.0, join_retries=0, faults=faults)
    )
    run.play()
    assert [result.reason for result in run.disk.results] == ["succeeded"]
    assert [allocation.node for allocation in run.disk.allocations] == ["node0"]


@pytest.mark.long
def test_nodes_none_of_which_is_among_the_first_of_the_job_go_on_without_a_head_that_they_cannot_reach() -> None:
    role = Role(name="trainer", restart="restart_all", nodes_min=17, nodes_max=33, workers=(1,), work_s=5.0)
    rack = Fault(what="partition", side=tuple(range(16)), lasts_s=FOR_EVER_S)
    run = SimulatedRun(Scenario(seed=1, roles=(role,), nodes=33, join_timeout_s=200.0, join_retries=0, faults=(rack,)))
    run.play()
    assert [result.reason for result in run.disk.results] == ["succeeded"]
    (claim,) = run.disk.claims.values()
    assert claim.members == tuple(f"node{number}" for number in range(16, 33))


@pytest.mark.long
def test_a_head_with_enough_nodes_waits_for_one_that_has_given_it_up_unread_and_joined_another() -> None:
    run = SimulatedRun(draw_unreached(7100441))
    run.play()
    assert [result.reason for result in run.disk.results] == ["succeeded"]


# A bug in each part, which its schedules show.


@pytest.mark.long
def test_relief_that_is_not_awaited_by_the_head_breaks_a_rule() -> None:
    with (
        mock.patch.object(Gathering, "_may_be_relieved", return_value=False),
        pytest.raises(BrokenRuleError, match="the run ends for want of nodes, and 3 reach each other"),
    ):
        play((0,), least=3)


@pytest.mark.long
def test_relief_by_nobody_breaks_a_rule() -> None:
    async def never(*_: object) -> bool:
        return False

    with (
        mock.patch.object(HeadRelief, "_can_relieve", never),
        pytest.raises(BrokenRuleError, match="the run ends for want of nodes, and 3 reach each other"),
    ):
        play((0,), least=3)


@pytest.mark.variant(of="test_nodes_that_are_enough_go_on_without_a_first_head_that_none_of_them_reaches")
@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 400, 100))
def test_no_rule_is_broken_where_nodes_cannot_reach_the_first_head(first: int) -> None:
    for seed in range(first, first + 100):
        SimulatedRun(draw_unreached(seed)).play()
