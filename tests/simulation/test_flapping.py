"""Nodes that are lost again and again: they are left out where the others are enough, and the run goes on."""

from __future__ import annotations

import pytest

from hpc_elastic.rundir.records import RunResultRecord
from tests.simulation.disk import LAYOUT
from tests.simulation.draws.flapping import draw_flapping
from tests.simulation.planted.returns import BUGS, PlantedReturns
from tests.simulation.rules.invariants import BrokenRuleError
from tests.simulation.scenario import HEAD, Fault, Role, Scenario
from tests.simulation.world import SimulatedRun
from tests.tiers import each_third

SEEDS = range(400)
# Where a bug shows that many seeds pass by: it is tried first. What changes the schedules changes this.
SEEN = {"a node that was lost twice is used like any other": 18}


@pytest.mark.long
@pytest.mark.parametrize("bug", each_third(BUGS, of="test_a_planted_bug_about_repeated_losses_is_found"))
def test_a_planted_bug_about_repeated_losses_is_found(bug: str) -> None:
    def play_all() -> None:
        for seed in (SEEN.get(bug, 2), *SEEDS):
            SimulatedRun(draw_flapping(seed), PlantedReturns(bug)).play()

    with pytest.raises(BrokenRuleError):
        play_all()


def cut(node: int, at: float, lasts_s: float = 15.0) -> Fault:
    return Fault(what="partition", side=(node,), at=at, lasts_s=lasts_s)


def the_run(members: int, spares: int, *faults: Fault, least: int = 1) -> SimulatedRun:
    """A run of 100 s of work in the same attempt, which has been played; who is back takes part as soon as it can."""
    role = Role(name="trainer", restart="restart_all", nodes_min=least, nodes_max=members, workers=(1,), work_s=100.0)
    run = SimulatedRun(
        Scenario(seed=1, roles=(role,), nodes=members + spares, rejoin="immediately", faults=faults, lease_s=5.0)
    )
    run.play()
    return run


def the_result(run: SimulatedRun) -> RunResultRecord:
    (result,) = run.disk.results
    return result


@pytest.mark.long
def test_a_node_that_is_cut_off_twice_is_left_out_and_the_run_does_not_restart_for_it() -> None:
    run = the_run(3, 0, cut(2, 20.0), cut(2, 60.0))
    worlds = [claim.members for claim in run.disk.claims.values()]
    everybody, others = ("node0", "node1", "node2"), ("node0", "node1")
    assert worlds == [everybody, others, everybody, others]
    assert the_result(run).reason == "succeeded"
    assert the_result(run).nodes == others


@pytest.mark.long
def test_a_head_that_is_cut_off_twice_is_no_member_of_the_next_attempt() -> None:
    run = the_run(3, 0, cut(0, 20.0), cut(0, 60.0), least=2)
    last = run.disk.claims[len(run.disk.claims)]
    assert (last.members, [each.node for each in last.set_aside]) == (("node1", "node2"), ["node0"])
    assert the_result(run).reason == "succeeded"


@pytest.mark.long
def test_a_head_that_alone_goes_on_does_not_blame_those_that_it_was_cut_off_from() -> None:
    run = the_run(3, 0, cut(0, 20.0), cut(0, 60.0), least=1)
    assert [claim.members for claim in run.disk.claims.values()][-2:] == [("node0",), ("node0", "node1", "node2")]
    assert run.disk.claims[len(run.disk.claims)].spend.node_losses == 4


def test_a_node_that_is_needed_is_used_however_often_it_was_lost() -> None:
    run = the_run(3, 0, cut(2, 20.0, lasts_s=6.0), cut(2, 60.0, lasts_s=6.0), least=3)
    assert {claim.members for claim in run.disk.claims.values()} == {("node0", "node1", "node2")}
    last = run.disk.claims[len(run.disk.claims)]
    assert (last.spend.node_losses, [each.node for each in last.set_aside]) == (2, ["node2"])
    assert the_result(run).reason == "succeeded"


def test_who_takes_over_again_and_again_reads_each_claim_twice() -> None:
    """Once as the latest one, and once to find the last attempt before this start of the job."""
    heads = [Fault(what="pause", node=HEAD, at=20.0 * number, lasts_s=12.0) for number in range(1, 7)]
    run = the_run(2, 0, *heads)
    assert len([claim.head for claim in run.disk.claims.values() if claim.head == "node1"]) == 6
    of_first = {agent.name: times for (agent, path), times in run.reads._times.items() if path == LAYOUT.claim(1)}
    assert of_first == {"node0": 2, "node1": 2}
