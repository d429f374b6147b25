"""A first head that stands still as the others ask to join it costs them time, and no try."""

from __future__ import annotations

import pytest

from tests.simulation.draw_slow_heads import draw_slow_heads
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize(
    "seeds", parts_of(SEEDS, check=2, test=8, of="test_no_rule_is_broken_by_a_first_head_that_is_slow")
)
def test_no_rule_is_broken_by_a_first_head_that_is_slow(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_slow_heads(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --slow-heads --seed {seed}`"
            )
