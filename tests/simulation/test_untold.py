"""Heads that are lost as they open an attempt: who has had no answer to its join takes part in the succession."""

from __future__ import annotations

import pytest

from tests.simulation.draws.untold import FIRST, draw_untold
from tests.simulation.planted.untold import UNTOLD_BUGS, PlantedUntold
from tests.simulation.rules.invariants import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import each_third

SEEDS = range(FIRST, 150, 3)


def broken_by(seed: int, bug: str) -> str:
    try:
        SimulatedRun(draw_untold(seed), PlantedUntold(bug)).play()
    except BrokenRuleError as error:
        return str(error)
    return ""


@pytest.mark.long
@pytest.mark.parametrize(
    "bug", each_third(UNTOLD_BUGS, of="test_a_planted_bug_of_who_gives_up_a_head_without_a_word_of_it_is_found")
)
def test_a_planted_bug_of_who_gives_up_a_head_without_a_word_of_it_is_found(bug: str) -> None:
    words = UNTOLD_BUGS[bug][1]
    assert any(words in broken_by(seed, bug) for seed in SEEDS), f"no seed of {len(SEEDS)} shows that {bug}"
