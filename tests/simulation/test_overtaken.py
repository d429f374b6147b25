"""A head that ends a run while it is cut off from all does not end what others have gone on with."""

from __future__ import annotations

import pytest

from tests.simulation.draw_overtaken import draw_overtaken
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize(
    "seeds", parts_of(SEEDS, check=2, test=8, of="test_no_rule_is_broken_by_a_head_that_ends_a_run_too_late")
)
def test_no_rule_is_broken_by_a_head_that_ends_a_run_too_late(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_overtaken(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --overtaken --seed {seed}`"
            )
