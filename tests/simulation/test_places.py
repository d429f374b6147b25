"""Places of roles: a spare takes one of another role, and goes back to its own where that lacks nodes."""

from __future__ import annotations

import pytest

from tests.simulation.draws.general import draw
from tests.simulation.scenario import Fault, Role, Scenario
from tests.simulation.world import SimulatedRun

pytestmark = pytest.mark.long

SPARE = "node6"  # of the role reader, as all that come after the nodes of the roles are of the last one


def the_run(*killed: int) -> SimulatedRun:
    """A run of three roles and a spare, whose nodes with these numbers are killed, each ten seconds after the other."""
    roles = tuple(
        Role(name=name, restart="restart_all", nodes_min=least, nodes_max=most, workers=(1,), work_s=60.0)
        for name, least, most in (("trainer", 2, 3), ("watcher", 1, 2), ("reader", 1, 1))
    )
    faults = [Fault(what="kill_agent", node=node, at=5.0 + 10 * number) for number, node in enumerate(killed)]
    run = SimulatedRun(Scenario(seed=1, roles=roles, nodes=7, lease_s=3.0, join_timeout_s=15.0, faults=tuple(faults)))
    run.play()
    return run


def places(run: SimulatedRun) -> list[str]:
    """The role of the spare in each attempt, "" where it has none."""
    worlds = run.disk.worlds.values()
    return ["".join(node.role for node in world.nodes if node.node == SPARE) for world in worlds]


def test_a_spare_goes_back_to_its_own_role_if_that_of_its_place_can_do_without_it() -> None:
    run = the_run(1, 5)
    assert places(run) == ["", "trainer", "reader"]
    assert [result.reason for result in run.disk.results] == ["succeeded"]
    assert sorted(node.role for node in run.disk.worlds[3].nodes) == ["reader", *["trainer"] * 2, *["watcher"] * 2]


def test_a_spare_keeps_its_place_if_the_role_of_that_needs_it() -> None:
    """Else the run would go on with fewer trainers than it needs: it ends for want of a reader."""
    run = the_run(1, 2, 5)
    assert places(run) == ["", "trainer", "trainer"]
    assert [result.reason for result in run.disk.results] == ["node_lost"]
    assert "too few nodes are left to go on" in run.disk.results[0].cause


def test_a_spare_takes_the_place_of_its_own_role_first() -> None:
    run = the_run(5, 1)
    assert places(run) == ["", "reader", "reader"]
    assert [result.reason for result in run.disk.results] == ["succeeded"]


def test_a_spare_that_goes_back_to_its_own_role_moves_nobody_of_that() -> None:
    """Its place is taken by the node that had it before, which is back (general seed 86007937)."""
    run = SimulatedRun(draw(86007937))
    run.play()
    second, third = ([node.node for node in run.disk.worlds[attempt].nodes][3:] for attempt in (2, 3))
    assert second == ["node3", "node7", "node5", "node6"]
    assert third == ["node3", "node4", "node7", "node6"]


@pytest.mark.parametrize(("role", "attempts"), [("trainer", 3), ("reader", 2)])
def test_a_node_that_may_come_at_once_restarts_no_world_in_which_its_role_has_no_room(role: str, attempts: int) -> None:
    """The world lacks a trainer. For a reader all of it would be stopped, and not to have what its own role lacks."""
    roles = [
        Role(name=name, restart="restart_all", nodes_min=1, nodes_max=most, workers=(1,), work_s=60.0)
        for name, most in (("trainer", 2), ("reader", 1))
    ]
    roles = roles if role == "reader" else roles[::-1]  # who comes late is of the last one
    lost = 1 if role == "reader" else 2
    faults = Fault(what="starts_late", node=3, lasts_s=20.0), Fault(what="kill_agent", node=lost, at=5.0)
    run = SimulatedRun(
        Scenario(
            seed=1, roles=tuple(roles), nodes=4, lease_s=3.0, join_timeout_s=15.0, rejoin="immediately", faults=faults
        )
    )
    run.play()
    assert [result.reason for result in run.disk.results] == ["succeeded"]
    assert len(run.disk.claims) == attempts
