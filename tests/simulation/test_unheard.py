"""Heads that are lost with the result they have written: the others find it, and do what it says."""

from __future__ import annotations

import pytest

from tests.simulation.draws.unheard import draw_unheard
from tests.simulation.planted.unheard import UNHEARD_BUGS, PlantedUnheard
from tests.simulation.rules.invariants import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import each_third

SEEDS = range(40)


def broken_by(seed: int, bug: str) -> str:
    try:
        SimulatedRun(draw_unheard(seed), PlantedUnheard(bug)).play()
    except BrokenRuleError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("seed", range(2))
def test_nobody_is_told_of_a_result_whose_writer_is_lost_with_it(seed: int) -> None:
    run = SimulatedRun(draw_unheard(seed))
    run.play()
    assert run.agent(run.disk.results[0].written_by).exit_code is None
    assert not run.job_ends.enders_told


@pytest.mark.long
@pytest.mark.parametrize("bug", each_third(UNHEARD_BUGS, of="test_a_planted_bug_of_who_finds_the_result_is_found"))
def test_a_planted_bug_of_who_finds_the_result_is_found(bug: str) -> None:
    words = UNHEARD_BUGS[bug][1]
    assert any(words in broken_by(seed, bug) for seed in SEEDS), f"no seed of {len(SEEDS)} shows that {bug}"
