"""How the scheduler ends a job: the workers hear of it in time, and the run has the right end or none."""

from __future__ import annotations

import pytest

from tests.simulation.draw_limits import draw_limits
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize(
    "seeds", parts_of(SEEDS, check=2, test=8, of="test_no_rule_is_broken_by_the_end_of_an_allocation")
)
def test_no_rule_is_broken_by_the_end_of_an_allocation(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_limits(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --limits --seed {seed}`"
            )
