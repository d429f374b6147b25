"""A head that is told of an error goes on with the claim that it has made all the same."""

from __future__ import annotations

import pytest

from tests.simulation.draw_unsure import draw_unsure
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize(
    "seeds", parts_of(SEEDS, check=2, test=8, of="test_no_rule_is_broken_where_a_head_is_unsure_of_its_claim")
)
def test_no_rule_is_broken_where_a_head_is_unsure_of_its_claim(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_unsure(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --unsure --seed {seed}`"
            )
