"""A run that another job goes on with: once the scheduler has said that the one before is over, and not before."""

from __future__ import annotations

import pytest

from tests.simulation.draw_resumed import draw_resumed
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize(
    "seeds", parts_of(SEEDS, check=4, test=8, of="test_no_rule_is_broken_where_another_job_goes_on")
)
def test_no_rule_is_broken_where_another_job_goes_on(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_resumed(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --resumed --seed {seed}`"
            )
