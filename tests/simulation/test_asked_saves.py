"""Saves that people ask for in simulated runs: whole, answered once, and nothing of them remains."""

from __future__ import annotations

import pytest

from tests.simulation.draws.asked_saves import draw_asked_saves
from tests.simulation.draws.overwritten import draw_overwritten
from tests.simulation.planted.asked_saves import BUGS, LOST_HEAD, PlantedAskedSaves
from tests.simulation.rules.invariants import BrokenRuleError
from tests.simulation.scenario import HEAD, Fault, Role, Scenario
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of, variants

SEEDS = range(400)
# Where a bug shows that many seeds pass by: it is tried first. What changes the schedules changes these.
SEEN = {"what is gone counts as written": 165, "what was given up is left": 65}
PLAYED = [bug for bug in BUGS if bug != LOST_HEAD]


@pytest.mark.long
@pytest.mark.parametrize(
    "seeds", parts_of(SEEDS, check=4, test=20, of="test_no_rule_is_broken_where_a_person_asks_for_saves")
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
@pytest.mark.parametrize(
    "bug",
    [*PLAYED[:3], *variants(*PLAYED[3:], of="test_a_planted_bug_of_saves_that_people_ask_for_is_found")],
)
def test_a_planted_bug_of_saves_that_people_ask_for_is_found(bug: str) -> None:
    assert any(shows(seed, bug) for seed in (SEEN.get(bug, 0), *SEEDS)), f"no seed of {len(SEEDS)} shows that {bug}"


def a_head_that_is_lost_as_nodes_wait(seed: int) -> Scenario:
    """One rank has saved its first step, the others have it still to save: the head asks them for it, and is killed."""
    role = Role(name="trainer", restart="restart_all", nodes_min=2, nodes_max=4, workers=(1,), work_s=120.0)
    faults = (
        Fault(what="ask_save", at=18.0 + seed, lasts_s=600.0),
        Fault(what="kill_agent", node=HEAD, at=21.0 + seed),
    )
    return Scenario(seed=seed, roles=(role,), nodes=4, lease_s=3.0, keeps_every_s=30.0, faults=faults)


@pytest.mark.long
def test_what_a_lost_head_had_pinned_is_not_pinned_in_the_next_attempt() -> None:
    for seed in range(10):
        SimulatedRun(a_head_that_is_lost_as_nodes_wait(seed)).play()


@pytest.mark.long
def test_a_stop_that_does_not_end_the_pins_of_a_lost_head_is_found() -> None:
    def play_all() -> None:
        for seed in range(10):
            SimulatedRun(a_head_that_is_lost_as_nodes_wait(seed), PlantedAskedSaves(LOST_HEAD)).play()

    with pytest.raises(BrokenRuleError, match="asked for before"):
        play_all()


def test_a_save_does_not_count_where_the_allocation_goes_on_under_another_head() -> None:
    """Both nodes of the world die with what they hold, and their spare begins as it would if it had been the head."""
    role = Role(name="trainer", restart="restart_all", nodes_min=1, nodes_max=2, workers=(2,), work_s=60.0)
    faults = (
        Fault(what="ask_save", at=10.0, lasts_s=60.0),
        Fault(what="kill_agent", node=0, at=20.0),
        Fault(what="kill_agent", node=1, at=20.001),
    )
    run = SimulatedRun(
        Scenario(
            seed=1,
            roles=(role,),
            nodes=3,
            lease_s=3.0,
            keeps_every_s=0.2,
            are_replicated=True,
            rejoin="immediately",
            faults=faults,
        )
    )
    run.play()
    assert run.asked_saves.saved == 1
    assert len(run.disk.claims) == 2
    assert run.disk.claims[2].states == ()


@pytest.mark.long
def test_only_a_head_that_has_opened_an_attempt_answers() -> None:
    """Two of three nodes cannot reach the head, which has asked them, and gather for another one."""
    for seed in range(10):
        role = Role(name="trainer", restart="restart_all", nodes_min=1, nodes_max=3, workers=(1,), work_s=60.0)
        faults = (
            Fault(what="unreachable", side=(0, 2), phase="running", at=0.072, lasts_s=8.0),
            Fault(what="ask_save", at=3.0 + 0.2 * seed, lasts_s=0.5),
        )
        scenario = Scenario(
            seed=seed, roles=(role,), nodes=3, join_timeout_s=5.0, disk_s=(0.001,), keeps_every_s=1.0, faults=faults
        )
        SimulatedRun(scenario).play()


@pytest.mark.long
def test_a_head_that_finds_another_one_leaves_new_requests_to_that() -> None:
    """The head is cut off from the two others, of which one takes its place just before people ask."""
    for seed in range(8):
        role = Role(name="trainer", restart="restart_all", nodes_min=2, nodes_max=3, workers=(1,), work_s=20.0)
        asks = tuple(Fault(what="ask_save", at=6.5 + 0.1 * seed + 0.001 * each, lasts_s=5.0) for each in range(3))
        cut = Fault(what="partition", side=(1, 2), at=2.5, lasts_s=10_000.0)
        scenario = Scenario(
            seed=seed, roles=(role,), nodes=3, lease_s=3.0, disk_s=(0.001,), keeps_every_s=0.2, faults=(cut, *asks)
        )
        SimulatedRun(scenario).play()


@pytest.mark.parametrize("seed", [195, 320, 371])
def test_a_part_that_was_written_before_another_one_was_gone_does_not_count(seed: int) -> None:
    SimulatedRun(draw_overwritten(seed)).play()
