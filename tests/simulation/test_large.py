"""Worlds of some twenty nodes that lose their head: who lives goes on soon, and asks few others."""

from __future__ import annotations

import pytest

from tests.simulation.draw_large import draw_large
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(60)


@pytest.mark.long
@pytest.mark.parametrize(
    "seeds", parts_of(SEEDS, check=1, test=3, of="test_no_rule_is_broken_by_a_loss_in_a_large_world")
)
def test_no_rule_is_broken_by_a_loss_in_a_large_world(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_large(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --large --seed {seed}`"
            )
