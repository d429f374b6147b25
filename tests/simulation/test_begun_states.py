"""The state in memory with which an attempt begins: an older one if the same failure came again after it was loaded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation.scenario import Fault, Role, Scenario
from tests.simulation.world import SimulatedRun


def steps_begun(scenario: Scenario) -> list[int]:
    """With which step each attempt of a run that succeeds begins, 0 for none."""
    run = SimulatedRun(scenario)
    run.play()
    assert [result.reason for result in run.disk.results] == ["succeeded"]
    return [sum(state.version.step for state in claim.states) for claim in run.disk.claims.values()]


def steps_begun_with(*whats: str) -> list[int]:
    """With which step each attempt begins, 0 for none; these are the faults that end one attempt after the other.

    The ranks save once a second: twice in the first attempt, and not again before they are ended.
    """
    role = Role(name="trainer", restart="restart_all", nodes_min=2, nodes_max=2, workers=(2,), work_s=10.0)
    faults = tuple(
        Fault(what=what, node=1, phase="running", nth=number, at=2.5 if number == 1 else 0.3)
        for number, what in enumerate(whats, start=1)
    )
    return steps_begun(
        Scenario(seed=1, roles=(role,), nodes=2, lease_s=3.0, max_restarts=6, keeps_every_s=1.0, faults=faults)
    )


@pytest.mark.parametrize("what", ["exit_worker", "bus_worker"])
def test_a_state_is_not_loaded_again_if_the_same_failure_comes_after_it(what: str) -> None:
    """Its reason can be in that state; no older one is left here, so the ranks begin from what is on disk."""
    assert steps_begun_with(what, what) == [0, 2, 0]


@pytest.mark.parametrize("what", ["kill_worker", "term_worker"])
def test_a_state_is_trusted_however_often_a_signal_from_outside_ends_what_began_with_it(what: str) -> None:
    assert steps_begun_with(what, what, what) == [0, 2, 2, 2]


def test_a_state_is_trusted_however_often_a_person_asks_for_a_restart() -> None:
    assert steps_begun_with("ask_restart", "ask_restart", "ask_restart") == [0, 2, 2, 2]


def test_a_state_is_trusted_if_a_person_asks_for_a_restart_after_a_failure() -> None:
    assert steps_begun_with("exit_worker", "ask_restart") == [0, 2, 2]


def test_a_state_is_trusted_if_another_failure_comes_after_it() -> None:
    assert steps_begun_with("exit_worker", "bus_worker") == [0, 2, 2]


def steps_begun_with_damage(nodes: int, copy_s: float | None, fault: Fault) -> list[int]:
    """The same, where what the first attempt has saved turns out to be damaged when the second one loads it."""
    role = Role(name="trainer", restart="restart_all", nodes_min=2, nodes_max=2, workers=(2,), work_s=10.0)
    ranks = Scenario(seed=2, roles=(role,), nodes=nodes, lease_s=3.0, keeps_every_s=1.0, copy_s=copy_s)
    return steps_begun(replace(ranks, damage_chance=0.3, faults=(fault,)))


def test_a_state_that_a_node_finds_damaged_is_not_begun_with_again() -> None:
    fault = Fault(what="kill_worker", node=1, phase="running", at=3.5)
    assert steps_begun_with_damage(2, None, fault) == [0, 2, 0]


def test_a_state_whose_copy_is_damaged_is_not_begun_with_again_though_another_node_holds_it() -> None:
    """Else the spare asks for the same copy in one attempt after the other, and none of them costs a restart."""
    fault = Fault(what="power_off", node=1, phase="running", at=5.5)
    assert steps_begun_with_damage(3, 0.15, fault) == [0, 3, 0]


@pytest.mark.parametrize("seed", [1, 2])
def test_a_state_is_written_again_if_an_allocation_ends_when_only_one_node_has_saved_a_newer_one(seed: int) -> None:
    """The files that it began with do not count any more, and of the newer state there is only a part."""
    ends = (Fault(what="term_all", at=at) for at in (14.0, 35.0))
    starts = (Fault(what="requeue", side=(0, 1), at=at) for at in (30.0, 60.0))
    role = Role(name="trainer", restart="restart_all", nodes_min=2, nodes_max=2, workers=(1,), work_s=60.0)
    again = Scenario(seed=seed, roles=(role,), nodes=2, lease_s=3.0, keeps_every_s=4.0, is_requeued=True)
    assert steps_begun(replace(again, faults=(*ends, *starts))) == [0, 2, 2]
