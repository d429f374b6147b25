"""Members grow deaf or are cut off, and are back in time or not, while workers of the others fail."""

from __future__ import annotations

import pytest

from tests.simulation.draw_farewells import draw_farewells
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize(
    "seeds", parts_of(SEEDS, check=1, test=8, of="test_no_rule_is_broken_by_members_that_say_goodbye")
)
def test_no_rule_is_broken_by_members_that_say_goodbye(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_farewells(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --farewells --seed {seed}`"
            )
