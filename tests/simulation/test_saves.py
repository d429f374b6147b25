"""Ranks that save: a stop because somebody else failed or died waits for them, and never beside another world."""

from __future__ import annotations

import pytest

from tests.simulation.draws.saves import draw_saves
from tests.simulation.planted.saves import BUGS, IGNORES_FENCE, PlantedSaves
from tests.simulation.rules.invariants import BrokenRuleError
from tests.simulation.scenario import Fault, Role, Scenario
from tests.simulation.world import SimulatedRun
from tests.tiers import each_third

SEEDS = range(300)


@pytest.mark.long
@pytest.mark.parametrize(
    "bug", each_third([bug for bug in BUGS if bug != IGNORES_FENCE], of="test_a_planted_bug_about_saves_is_found")
)
def test_a_planted_bug_about_saves_is_found(bug: str) -> None:
    def play_all() -> None:
        for seed in SEEDS:
            SimulatedRun(draw_saves(seed), PlantedSaves(bug)).play()

    with pytest.raises(BrokenRuleError):
        play_all()


def a_death_and_a_cut(seed: int) -> Scenario:
    """An agent dies while most ranks save, and then two of the other four nodes are cut off, which are enough."""
    role = Role(name="trainer", restart="restart_all", nodes_min=2, nodes_max=5, workers=(2,), work_s=60.0)
    faults = (
        Fault(what="kill_agent", node=4, at=30.0),
        Fault(what="partition", side=(2, 3), at=30.5, lasts_s=100.0),
    )
    return Scenario(seed=seed, roles=(role,), nodes=5, lease_s=3.0, save_s=19.0, faults=faults)


@pytest.mark.long
def test_a_cut_within_the_time_of_those_who_save_ends_it() -> None:
    for seed in range(10):
        SimulatedRun(a_death_and_a_cut(seed)).play()


@pytest.mark.long
def test_a_save_that_a_fence_does_not_end_is_found() -> None:
    def play_all() -> None:
        for seed in range(10):
            SimulatedRun(a_death_and_a_cut(seed), PlantedSaves(IGNORES_FENCE)).play()

    with pytest.raises(BrokenRuleError, match=r"two worlds|are at work"):
        play_all()
