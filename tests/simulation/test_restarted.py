"""A start of the job after one that is busy, that fails in that moment, or that has opened no attempt."""

from __future__ import annotations

import pytest

from tests.simulation.draw_restarted import draw_restarted
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize("seeds", parts_of(SEEDS, check=2, test=8, of="test_no_rule_is_broken_by_a_start_before"))
def test_no_rule_is_broken_by_a_start_before(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_restarted(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --restarted --seed {seed}`"
            )
