"""Worlds that are dead, and the spares that carry on the run; and worlds that only seem to be dead."""

from __future__ import annotations

from functools import partial
from unittest import mock

import pytest

from hpc_elastic.membership import discovery
from hpc_elastic.membership.discovery import Dial
from hpc_elastic.membership.succession import LostHead, Order
from hpc_elastic.plan.roles import RestartPolicy
from hpc_elastic.rundir.records import RunResultRecord
from tests.simulation.draws.spares import draw_spares
from tests.simulation.rules.invariants import BrokenRuleError
from tests.simulation.scenario import HEAD, Fault, Role, Scenario
from tests.simulation.world import SimulatedRun
from tests.tiers import longer, variants

SEEDS = range(400)
AT = 20.0


@pytest.mark.long
def test_the_seeds_find_a_spare_that_takes_a_silent_head_for_dead() -> None:
    def is_lost(lost: LostHead, order: Order) -> bool:
        return lost.node == order.head

    def play_all() -> None:
        for seed in SEEDS:
            SimulatedRun(draw_spares(seed)).play()

    with (
        mock.patch.object(discovery, "_may_succeed", is_lost),
        mock.patch.object(discovery.HeadDiscovery, "_may_be_headless", return_value=True),  # and asks nobody
        pytest.raises(BrokenRuleError, match="takes the place of node0, which lives"),
    ):
        play_all()


@pytest.mark.parametrize("seed", [9710057])
def test_no_agent_ends_the_job_of_a_head_whose_agent_dies_long_after_the_latest_beat_of_its_spare(seed: int) -> None:
    """A spare with a lease of 3 s beats once a second, and its successor's script is at work."""
    SimulatedRun(draw_spares(seed)).play()


def killed(node: int, at: float = AT) -> Fault:
    return Fault(what="kill_agent", node=node, at=at)


def the_run(
    members: int, spares: int, *faults: Fault, least: int = 1, lease_s: float = 10.0, seed: int = 1
) -> SimulatedRun:
    """A run of 60 s of work, which has been played."""
    role = Role(name="trainer", restart="restart_all", nodes_min=least, nodes_max=members, workers=(2,), work_s=60.0)
    run = SimulatedRun(
        Scenario(seed=seed, roles=(role,), nodes=members + spares, lease_s=lease_s, join_timeout_s=60.0, faults=faults)
    )
    run.play()
    return run


def the_result(run: SimulatedRun) -> RunResultRecord:
    (result,) = run.disk.results
    return result


@pytest.mark.parametrize("restart", ["restart_all", "restart_role", "ignore"])
def test_workers_that_the_guard_has_killed_start_again_though_a_spare_is_all_that_was_silent(
    restart: RestartPolicy,
) -> None:
    """A spare beats at other times than the members, and the run does without it; the dead ranks were waited for."""
    roles = (
        Role(name="trainer", restart=restart, nodes_min=2, nodes_max=3, workers=(1,), work_s=10.0),
        Role(name="reader", restart="restart_all", nodes_min=1, nodes_max=1, workers=(1,), work_s=10.0),
    )
    pause = Fault(what="pause", node=0, at=0.9, phase="running", lasts_s=1.5)
    run = SimulatedRun(Scenario(seed=80204777, roles=roles, nodes=6, lease_s=3.0, join_timeout_s=30.0, faults=(pause,)))
    run.play()
    assert (the_result(run).reason, max(run.disk.claims)) == ("succeeded", 2)


def test_a_spare_takes_the_place_of_the_only_node_at_once_if_its_agent_is_killed() -> None:
    run = the_run(1, 1, killed(0))
    assert (the_result(run).reason, run.disk.claims[2].members) == ("succeeded", ("node1",))
    assert run.disk.claims[2].spend.node_losses == 1
    assert run.disk.asked_at[2] <= AT + 2


def test_a_spare_goes_on_alone_once_every_fence_has_passed_if_head_and_member_are_killed() -> None:
    run = the_run(2, 1, killed(0), killed(1))
    assert (the_result(run).reason, run.disk.claims[2].members) == ("succeeded", ("node2",))
    assert run.disk.claims[2].spend.node_losses == 2
    assert AT + 2 * 10 <= run.disk.asked_at[2] <= AT + 2 * 10 + 2


def test_two_spares_find_each_other_if_both_are_needed() -> None:
    run = the_run(2, 2, killed(0), killed(1), least=2)
    assert (the_result(run).reason, run.disk.claims[2].members) == ("succeeded", ("node2", "node3"))


@pytest.mark.parametrize("spares", [3, *longer(4, 5)])
def test_spares_that_came_late_find_each_other_if_several_are_needed(spares: int) -> None:
    """The world's record names none of them, for they came when the world was at work."""
    late = [Fault(what="starts_late", node=2 + number, lasts_s=5.0 + number) for number in range(spares)]
    run = the_run(2, spares, *late, killed(0), killed(1), least=2)
    assert not run.disk.worlds[1].spares
    assert (the_result(run).reason, len(run.disk.claims[2].members)) == ("succeeded", 2)


@pytest.mark.parametrize("seed", [140])
def test_spares_that_all_missed_the_first_round_do_not_wait_for_each_other_until_the_end(seed: int) -> None:
    SimulatedRun(draw_spares(seed)).play()


def test_a_spare_with_too_few_beside_it_says_who_was_lost_after_the_members_would_have() -> None:
    run = the_run(2, 1, killed(0), killed(1), least=2)
    result = the_result(run)
    assert (result.reason, result.exit_code) == ("node_lost", 7)
    assert "node0, node1 were lost" in result.cause
    assert run.disk.ended_at >= AT + 4 * 10


def test_a_spare_succeeds_a_spare_that_has_succeeded() -> None:
    run = the_run(1, 2, killed(0), killed(HEAD, at=40.0))
    heads = [claim.head for claim in run.disk.claims.values()]
    assert heads == ["node0", "node2", "node1"]  # node1 came when the world was at work, so its turn is the later one
    assert the_result(run).reason == "succeeded"


@pytest.mark.long
def test_a_spare_writes_the_success_of_a_world_that_died_after_its_work_was_done() -> None:
    for at in range(20):
        run = the_run(1, 1, Fault(what="kill_agent", node=0, phase="closing", at=at / 1e4))
        assert (the_result(run).reason, len(run.disk.claims)) == ("succeeded", 1)


@pytest.mark.long
@pytest.mark.parametrize("lasts_s", [1.0, 5.0, 9.0, 15.0, 18.0])
@pytest.mark.parametrize("least", [1, 2])
def test_a_member_that_is_only_slow_goes_on_and_not_the_spare_beside_it(lasts_s: float, least: int) -> None:
    run = the_run(2, 1, killed(0), Fault(what="pause", node=1, at=AT, lasts_s=lasts_s), least=least)
    assert the_result(run).reason == "succeeded"
    assert (run.disk.claims[2].head, set(run.disk.claims[2].members)) == ("node1", {"node1", "node2"})


@pytest.mark.parametrize("lasts_s", [8.0, 12.0, 30.0, 50.0])
@pytest.mark.parametrize(
    "seed",
    [0, *longer(1), *variants(2, 3, of="test_a_spare_never_goes_on_beside_a_head_that_is_only_silent")],
)
def test_a_spare_never_goes_on_beside_a_head_that_is_only_silent(lasts_s: float, seed: int) -> None:
    for what in ("pause", "partition"):
        run = the_run(1, 1, Fault(what=what, node=0, side=(0,), at=AT, lasts_s=lasts_s), seed=seed)
        assert {claim.head for claim in run.disk.claims.values()} == {"node0"}


def test_a_spare_that_comes_when_the_world_is_at_work_can_succeed_it() -> None:
    late = Fault(what="starts_late", node=1, lasts_s=20.0)
    run = the_run(1, 1, late, killed(0, at=40.0))
    assert (the_result(run).reason, run.disk.claims[1].members) == ("succeeded", ("node0",))
    assert run.disk.claims[2].members == ("node1",)


@pytest.mark.parametrize("at", [AT, 0.5, 1.0, 2.0])
def test_a_spare_whose_connection_is_reset_asks_its_head_and_takes_nothing_over(at: float) -> None:
    """The head lives, and nobody but itself could say so: its world has one node."""
    run = the_run(1, 1, Fault(what="reset", node=1, at=at))
    assert {claim.head for claim in run.disk.claims.values()} == {"node0"}
    assert run.disk.results[0].reason == "succeeded"


# Spares that gather, or look for the one that does, where two nodes cannot reach each other.


def the_run_where_nodes_are_cut_off(spares: int, *cuts: tuple[int, int, float, float]) -> SimulatedRun:
    """A run of 60 s of work of two members, both of which are killed. A cut: two nodes, since when, and until when."""
    role = Role(name="trainer", restart="restart_all", nodes_min=1, nodes_max=2, workers=(1,), work_s=60.0)
    run = SimulatedRun(Scenario(seed=1, roles=(role,), nodes=2 + spares, faults=(killed(0), killed(1))))

    def cut(one: int, other: int, until: float) -> None:
        run.network.close(one, other, until)
        run.network.close(other, one, until)

    for one, other, since, until in cuts:
        run.clock.at(since, partial(cut, one, other, until))
    run.play()
    return run


def test_a_spare_that_gathers_does_not_leave_for_a_later_one_that_another_spare_names() -> None:
    """node3 and node4 gather apart from each other, for node2 has never heard that the head is dead.

    node2 finds node4 first. As soon as node3 reaches node2, it is told of node4, and goes on: who is later in the order
    leaves for it, as soon as the two reach each other. Else each could leave for the other.
    """
    reaches_node2_at, reaches_node4_at = 30.0, 34.0
    run = the_run_where_nodes_are_cut_off(
        3, (0, 2, 19.9, 100.0), (2, 3, 19.0, reaches_node2_at), (3, 4, 19.0, reaches_node4_at)
    )
    assert {who for _, who, what in run.events if isinstance(what, discovery.Gather)} == {"node3", "node4"}
    (left,) = [(who, at) for at, who, what in run.events if isinstance(what, discovery.StepDown)]
    assert left[0] == "node4"
    assert left[1] >= reaches_node4_at
    assert not any(what.node == "node4" for _, who, what in run.events if who == "node3" and isinstance(what, Dial))
    assert (run.disk.claims[2].head, the_result(run).reason) == ("node3", "succeeded")


@pytest.mark.long
def test_a_spare_that_is_told_who_gathers_asks_that_one_next() -> None:
    """node5 gathers. The others have only lost the sound of their head: node2 finds it, and names it to node3."""
    run = the_run_where_nodes_are_cut_off(4, (0, 2, 17.0, 100.0), (0, 3, 19.0, 100.0), (0, 4, 19.9, 100.0))
    dialled = [what.node for _, who, what in run.events if who == "node3" and isinstance(what, Dial)]
    assert dialled == ["node1", "node2", "node5"]
    assert (run.disk.claims[2].head, the_result(run).reason) == ("node5", "succeeded")


# In which order an agent without a head asks the others.


def who_is_asked(run: SimulatedRun, node: str) -> list[str]:
    return [what.node for _, who, what in run.events if who == node and isinstance(what, Dial)]


@pytest.mark.parametrize(
    ("loss", "rounds"),
    [
        pytest.param(
            killed(0),
            [["node1"], ["node1", "node0"], ["node1"], ["node1"], ["node1"], ["node1", "node0"]],
            id="dead",
        ),
        pytest.param(
            Fault(what="pause", node=0, at=AT, lasts_s=9.0),
            [["node1"], ["node1", "node0"], ["node1", "node0"], ["node1", "node0"]],
            id="silent",
        ),
    ],
)
def test_a_member_asks_its_lost_head_after_the_others(loss: Fault, rounds: list[list[str]]) -> None:
    """In each round but the first, for it may be back; in each fourth one if it is dead: else a thousand ask in vain.

    node1, whose turn comes first, cannot be reached meanwhile.
    """
    cut = Fault(what="partition", side=(1,), at=AT - 0.1, lasts_s=14.0)
    asked = who_is_asked(the_run(3, 0, loss, cut, least=2), "node2")
    wanted = [name for names in rounds for name in names]
    assert asked[: len(wanted)] == wanted


def test_a_spare_asks_its_lost_head_first() -> None:
    """If only its connection was reset, nobody else may be left who would say so."""
    run = the_run(2, 1, killed(0), killed(1))
    assert who_is_asked(run, "node2")[:2] == ["node0", "node1"]
