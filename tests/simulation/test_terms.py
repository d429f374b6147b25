"""A TERM from outside means what the scheduler says of it, whether it says that at once, late, or not at all."""

from __future__ import annotations

import pytest

from tests.simulation.draw_terms import draw_terms
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(400)


@pytest.mark.long
@pytest.mark.parametrize("seeds", parts_of(SEEDS, check=2, test=12, of="test_no_rule_is_broken_by_a_term"))
def test_no_rule_is_broken_by_a_term(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_terms(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --terms --seed {seed}`"
            )
