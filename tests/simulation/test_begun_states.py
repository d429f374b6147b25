"""The state in memory with which an attempt begins: an older one if the same failure came again after it was loaded."""

from __future__ import annotations

import pytest

from tests.simulation.scenario import Fault, Role, Scenario
from tests.simulation.world import SimulatedRun


def steps_begun_with(*whats: str) -> list[int]:
    """With which step each attempt begins, 0 for none; these are the faults that end one attempt after the other.

    The ranks save once a second: twice in the first attempt, and not again before they are ended.
    """
    role = Role(name="trainer", restart="restart_all", nodes_min=2, nodes_max=2, workers=(2,), work_s=10.0)
    faults = tuple(
        Fault(what=what, node=1, phase="running", nth=number, at=2.5 if number == 1 else 0.3)
        for number, what in enumerate(whats, start=1)
    )
    run = SimulatedRun(
        Scenario(seed=1, roles=(role,), nodes=2, lease_s=3.0, max_restarts=6, keeps_every_s=1.0, faults=faults)
    )
    run.play()
    assert [result.reason for result in run.disk.results] == ["succeeded"]
    return [sum(state.version.step for state in claim.states) for claim in run.disk.claims.values()]


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
