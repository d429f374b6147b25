"""Machines that fail in odd ways: frozen in the middle of a turn, without a guard, with an old view of a directory."""

from __future__ import annotations

import pytest

from hpc_elastic.rundir import store
from tests.simulation.draws.machines import draw_machines
from tests.simulation.plant import Plant
from tests.simulation.scenario import Role, Scenario
from tests.simulation.wiring import wired
from tests.simulation.world import SimulatedRun

ROLE = Role(name="trainer", restart="restart_all", nodes_min=1, nodes_max=2, workers=(1,), work_s=20.0)


@pytest.mark.long
def test_nodes_of_a_slow_disk_do_not_supersede_each_other_for_ever_if_the_first_head_stood_still() -> None:
    """Reading takes up to 4 s here, and a new name is there after 30 s; all twelve had been head eight times."""
    run = SimulatedRun(draw_machines(180))
    run.play()
    assert len(run.disk.allocations) < 16
    assert sum(agent.exit_code == 0 for agent in run.agents) >= 8


@pytest.mark.long
def test_successors_whom_a_slow_disk_makes_late_wait_until_they_have_found_each_other() -> None:
    """Six nodes are left, each closes its round at another time, and asks four dead ones before the next successor."""
    run = SimulatedRun(draw_machines(84000135))
    run.play()
    assert [result.reason for result in run.disk.results] == ["succeeded"]
    assert [len(claim.members) for claim in run.disk.claims.values()] == [10, 5]


@pytest.mark.long
def test_an_agent_that_is_frozen_as_it_asks_to_join_may_beat_as_soon_as_it_has_asked() -> None:
    """Its beat is due by then: it counts from the moment in which the question was made."""
    run = SimulatedRun(draw_machines(84000151))
    run.play()
    assert run.agents[1].process.has_ever_frozen


def test_a_name_that_was_absent_a_moment_ago_is_found_on_nfs() -> None:
    run = SimulatedRun(Scenario(seed=1, roles=(ROLE,), nodes=2, stale_s=30.0))
    path, seen = "/simulated/somewhere/record.json", []

    def work(number: int, *, reads: bool) -> None:
        run.agents[number].disk.best_effort(
            lambda: seen.append(store.read_json(path) if reads else store.find_json(path))
        )
        while run.clock.step():
            pass

    with wired(run, Plant()):
        work(1, reads=False)
        run.agents[0].disk.best_effort(lambda: store.claim(path, {"by": "node0"}))
        work(1, reads=True)
        work(1, reads=False)
    assert run.clock.now < 1
    assert seen == [None, None, {"by": "node0"}]
