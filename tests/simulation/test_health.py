"""Unhealthy nodes: no attempt runs on them, the head's own node among them, and what is healthy goes on."""

from __future__ import annotations

from itertools import chain

import pytest

from hpc_elastic.membership.actions import Note
from hpc_elastic.rundir.records import RunResultRecord
from tests.simulation.draws.checks import draw_checks
from tests.simulation.draws.health import FOR_EVER_S, draw_health
from tests.simulation.planted.health import BUGS, PlantedHealth
from tests.simulation.rules.invariants import BrokenRuleError
from tests.simulation.scenario import HEALTH, Fault, Role, Scenario
from tests.simulation.world import SimulatedRun
from tests.tiers import each_third

SEEDS = range(800)
# Where a bug shows that many seeds pass by: it is tried first. What changes the schedules changes these.
SEEN = {
    "a head passes over what checks find later": draw_health(234),
    "a member keeps what its checks find to itself": draw_health(56),
}


@pytest.mark.long
@pytest.mark.parametrize("bug", each_third(BUGS, of="test_a_planted_bug_about_health_is_found"))
def test_a_planted_bug_about_health_is_found(bug: str) -> None:
    def play_all() -> None:
        for scenario in chain([SEEN[bug]] if bug in SEEN else [], map(draw_health, SEEDS)):
            SimulatedRun(scenario, PlantedHealth(bug)).play()

    with pytest.raises(BrokenRuleError):
        play_all()


def test_a_spare_that_falls_silent_in_the_place_of_another_role_has_it_again_when_it_is_back() -> None:
    """With its first role again it would be no spare, as a reader is lost as well: the run would end for no trainer."""
    roles = [
        Role(name=name, restart="restart_all", nodes_min=1, nodes_max=most, workers=(1,), work_s=60.0)
        for name, most in (("trainer", 1), ("reader", 2))
    ]
    faults = (
        Fault(what="kill_agent", node=0, at=10.0),
        Fault(what="partition", node=3, side=(3,), way="in", at=11.6, lasts_s=2.5),
        Fault(what="kill_agent", node=1, at=13.5),
    )
    run = SimulatedRun(
        Scenario(
            seed=772,
            roles=tuple(roles),
            nodes=4,
            lease_s=3.0,
            delays_s=(0.2,),
            rejoin="immediately",
            faults=faults,
        )
    )
    run.play()
    assert the_result(run).reason == "succeeded"
    assert [(node.node, node.role) for node in run.disk.worlds[3].nodes] == [("node3", "trainer"), ("node2", "reader")]


def test_agents_that_supersede_each_other_before_the_first_attempt_come_to_an_end() -> None:
    """Seed 1118: three heads took turns to claim the next allocation, and none had the time to end the run."""
    run = SimulatedRun(draw_health(1118))
    run.play(bound_s=200.0)
    assert the_result(run).exit_code == 6


@pytest.mark.parametrize("seed", [35, 141])
def test_a_spare_asks_a_head_without_workers_once_a_round(seed: int) -> None:
    SimulatedRun(draw_health(seed)).play()


@pytest.mark.long
def test_each_of_three_roles_may_widen_a_stop_that_is_under_way() -> None:
    SimulatedRun(draw_checks(22000104)).play()


def unhealthy(node: int, at: float = 0.0, lasts_s: float = FOR_EVER_S) -> Fault:
    return Fault(what=HEALTH, node=node, at=at, lasts_s=lasts_s)


def the_run(
    members: int,
    spares: int,
    *faults: Fault,
    least: int = 1,
    rejoin: str = "at_restart",
    disk_s: tuple[float, ...] = (0.01,),
) -> SimulatedRun:
    """A run of 100 s of work, which has been played."""
    role = Role(name="trainer", restart="restart_all", nodes_min=least, nodes_max=members, workers=(1,), work_s=100.0)
    nodes = members + spares
    run = SimulatedRun(Scenario(seed=1, roles=(role,), nodes=nodes, rejoin=rejoin, disk_s=disk_s, faults=faults))
    run.play()
    return run


def the_result(run: SimulatedRun) -> RunResultRecord:
    (result,) = run.disk.results
    return result


def test_a_head_whose_own_node_is_unhealthy_goes_on_without_workers() -> None:
    run = the_run(3, 0, unhealthy(0))
    assert (the_result(run).reason, run.disk.claims[1].members) == ("succeeded", ("node1", "node2"))
    assert run.disk.claims[1].head == the_result(run).written_by == "node0"


def test_a_head_without_workers_that_is_killed_is_succeeded_by_a_member() -> None:
    run = the_run(3, 0, unhealthy(0), Fault(what="kill_agent", node=0, at=30.0))
    assert the_result(run).reason == "succeeded"
    assert (run.disk.claims[2].head, run.disk.claims[2].members) == ("node1", ("node1", "node2"))


def test_an_unhealthy_spare_whose_world_has_died_does_not_carry_it_on() -> None:
    run = the_run(1, 1, unhealthy(1), Fault(what="kill_agent", node=0, at=30.0))
    assert (the_result(run).exit_code, len(run.disk.claims)) == (7, 1)


def test_a_node_that_gets_well_is_taken_in() -> None:
    run = the_run(2, 0, unhealthy(1, lasts_s=30.0), rejoin="immediately")
    assert [claim.members for claim in run.disk.claims.values()] == [("node0",), ("node0", "node1")]
    assert 60.0 <= run.disk.asked_at[2] <= 70.0


def test_a_node_at_which_a_worker_met_a_bus_error_is_examined_before_the_next_attempt() -> None:
    run = the_run(3, 0, unhealthy(1, at=20.0), Fault(what="bus_worker", node=1, at=25.0))
    assert [claim.members for claim in run.disk.claims.values()] == [("node0", "node1", "node2"), ("node0", "node2")]
    assert run.disk.asked_at[2] <= 25.0 + 10.0


@pytest.mark.long
def test_a_node_is_examined_also_where_its_stop_is_over_before_its_failure_is_written() -> None:
    """The failure of another node is written first, on disks that take half a second."""
    buses = Fault(what="bus_worker", node=2, at=25.0), Fault(what="bus_worker", node=1, at=25.2)
    run = the_run(3, 0, unhealthy(1, at=20.0), *buses, disk_s=(0.5,))
    assert [claim.members for claim in run.disk.claims.values()] == [("node0", "node1", "node2"), ("node0", "node2")]


def test_a_node_at_which_a_worker_failed_by_itself_is_not_examined() -> None:
    run = the_run(3, 0, unhealthy(1, at=20.0), Fault(what="exit_worker", node=1, at=25.0))
    assert run.disk.claims[2].members == ("node0", "node1", "node2")


def test_a_spare_that_is_found_unhealthy_while_one_role_restarts_does_not_stop_the_other_roles() -> None:
    """It has no place that it could lose. Its network told it that the head cannot be reached: so it was examined."""
    roles = tuple(
        Role(name=name, restart="restart_role", nodes_min=1, nodes_max=1, workers=(2,), work_s=60.0, patience_s=15.0)
        for name in ("trainer", "reader")
    )
    faults = (
        Fault(what="kill_worker", node=1, at=10.0),  # the other one of that role has five seconds to end
        unhealthy(2, at=8.5),
        Fault(what="unreachable", side=(2,), at=10.3, lasts_s=0.1),
    )
    run = SimulatedRun(Scenario(seed=4, roles=roles, nodes=3, lease_s=3.0, faults=faults))
    run.play()
    (found_at,) = [at for at, _, what in run.events if isinstance(what, Note) and what.name == "node.unhealthy"]
    assert 10.0 < found_at < run.disk.asked_at[2] - 1.0
    assert [claim.roles for claim in run.disk.claims.values()] == [("trainer", "reader"), ("reader",)]
