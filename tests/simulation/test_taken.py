"""What comes of a notice that ranks take: who exits 75 has not failed, and goes on later."""

from __future__ import annotations

import pytest

from tests.simulation.draw_taken import draw_taken
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize(
    "seeds", parts_of(SEEDS, check=1, test=6, of="test_no_rule_is_broken_by_notices_that_ranks_take")
)
def test_no_rule_is_broken_by_notices_that_ranks_take(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_taken(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --taken --seed {seed}`"
            )
