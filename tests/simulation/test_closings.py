"""Who is to end the job is lost as the run ends: somebody else does."""

from __future__ import annotations

import pytest

from tests.simulation.draw_closings import draw_closings
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize(
    "seeds", parts_of(SEEDS, check=1, test=8, of="test_no_rule_is_broken_where_who_ends_the_job_is_lost")
)
def test_no_rule_is_broken_where_who_ends_the_job_is_lost(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_closings(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --closings --seed {seed}`"
            )
