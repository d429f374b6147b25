"""A run ends while nodes write what a person has asked them to save: nothing is left of it."""

from __future__ import annotations

import pytest

from tests.simulation.draw_cut_saves import draw_cut_saves
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize(
    "seeds", parts_of(SEEDS, check=1, test=8, of="test_no_rule_is_broken_where_a_save_is_cut_short")
)
def test_no_rule_is_broken_where_a_save_is_cut_short(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_cut_saves(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --cut-saves --seed {seed}`"
            )
