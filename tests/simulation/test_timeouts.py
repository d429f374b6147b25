"""Ranks that time out in a collective: the records name who did not take part."""

from __future__ import annotations

import pytest

from tests.simulation.draw_timeouts import draw_timeouts
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize("seeds", parts_of(SEEDS, check=1, test=6, of="test_no_rule_is_broken_by_time_outs"))
def test_no_rule_is_broken_by_time_outs(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_timeouts(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --timeouts --seed {seed}`"
            )
