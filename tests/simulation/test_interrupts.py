"""Ctrl-C ends a run without a scheduler: workers have their time, unless it is pressed again."""

from __future__ import annotations

import pytest

from tests.simulation.draw_interrupts import draw_interrupts
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize("seeds", parts_of(SEEDS, check=4, test=20, of="test_no_rule_is_broken_by_a_ctrl_c"))
def test_no_rule_is_broken_by_a_ctrl_c(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_interrupts(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --interrupts --seed {seed}`"
            )
