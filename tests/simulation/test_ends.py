"""Ends of simulated runs: they come when they must, and people read why, in whole sentences."""

from __future__ import annotations

import pytest

from tests.simulation.draws.kinds import DRAWN_ANYHOW, KINDS
from tests.simulation.planted.ends import END_BUGS, PlantedEnds
from tests.simulation.rules.invariants import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import each_third

SEEDS = range(48)


def broken_by(seed: int, bug: str) -> str:
    try:
        SimulatedRun(KINDS[END_BUGS[bug][1]](seed), PlantedEnds(bug)).play()
    except BrokenRuleError as error:
        return str(error)
    return ""


@pytest.mark.long
@pytest.mark.parametrize("bug", each_third(END_BUGS, of="test_a_planted_bug_of_how_a_run_ends_is_found"))
def test_a_planted_bug_of_how_a_run_ends_is_found(bug: str) -> None:
    words = END_BUGS[bug][2]
    assert any(words in broken_by(seed, bug) for seed in SEEDS), f"no seed of {len(SEEDS)} shows that {bug}"


def test_a_success_stands_though_another_head_claims_the_next_attempt_while_it_is_being_written() -> None:
    """The head before it is back from a cut; who claims looks for a result before it starts anything."""
    run = SimulatedRun(KINDS[DRAWN_ANYHOW](119010891))
    run.play()
    (result,) = run.disk.results
    assert (result.reason, result.attempts) == ("succeeded", 1)
    assert sorted(run.disk.claims) == [1, 2]
