"""A loss that comes while workers are stopped for something else is answered as any loss is."""

from __future__ import annotations

import pytest

from tests.simulation.draw_cut_stops import draw_cut_stops
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize(
    "seeds", parts_of(SEEDS, check=2, test=8, of="test_no_rule_is_broken_by_a_loss_while_workers_are_stopped")
)
def test_no_rule_is_broken_by_a_loss_while_workers_are_stopped(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_cut_stops(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --cut-stops --seed {seed}`"
            )
