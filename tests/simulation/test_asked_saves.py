"""Saves that people ask for in simulated runs: whole, answered once, and nothing of them remains."""

from __future__ import annotations

import pytest

from tests.simulation.draw_asked_saves import draw_asked_saves
from tests.simulation.planted_asked_saves import BUGS, LOST_HEAD, PlantedAskedSaves
from tests.simulation.rules import BrokenRuleError
from tests.simulation.scenario import HEAD, Fault, Role, Scenario
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(400)


@pytest.mark.long
@pytest.mark.parametrize(
    "seeds", parts_of(SEEDS, check=40, test=120, of="test_no_rule_is_broken_where_a_person_asks_for_saves")
)
def test_no_rule_is_broken_where_a_person_asks_for_saves(seeds: range) -> None:
    saved = 0
    for seed in seeds:
        run = SimulatedRun(draw_asked_saves(seed))
        try:
            run.play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --asked-saves --seed {seed}`"
            )
        saved += run.asked_saves.saved
    assert saved > len(seeds) / 3


def shows(seed: int, bug: str) -> bool:
    try:
        SimulatedRun(draw_asked_saves(seed), PlantedAskedSaves(bug)).play()
    except BrokenRuleError:
        return True
    return False


@pytest.mark.long
@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug != LOST_HEAD])
def test_a_planted_bug_of_saves_that_people_ask_for_is_found(bug: str) -> None:
    assert any(shows(seed, bug) for seed in SEEDS), f"no seed of {len(SEEDS)} shows that {bug}"


def a_head_that_is_lost_as_nodes_wait(seed: int) -> Scenario:
    """One rank has saved its first step, the others have it still to save: the head asks them for it, and is killed."""
    role = Role(name="trainer", restart="restart_all", nodes_min=2, nodes_max=4, workers=(1,), work_s=120.0)
    faults = (
        Fault(what="ask_save", at=18.0 + seed, lasts_s=600.0),
        Fault(what="kill_agent", node=HEAD, at=21.0 + seed),
    )
    return Scenario(seed=seed, roles=(role,), nodes=4, lease_s=3.0, keeps_every_s=30.0, faults=faults)


def test_what_a_lost_head_had_pinned_is_not_pinned_in_the_next_attempt() -> None:
    for seed in range(10):
        SimulatedRun(a_head_that_is_lost_as_nodes_wait(seed)).play()


def test_a_stop_that_does_not_end_the_pins_of_a_lost_head_is_found() -> None:
    def play_all() -> None:
        for seed in range(10):
            SimulatedRun(a_head_that_is_lost_as_nodes_wait(seed), PlantedAskedSaves(LOST_HEAD)).play()

    with pytest.raises(BrokenRuleError, match="asked for before"):
        play_all()
