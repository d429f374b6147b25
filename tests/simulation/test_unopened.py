"""Heads that are lost before the first attempt: the others claim the allocation, one after the other, and go on."""

from __future__ import annotations

import pytest

from tests.simulation.draw_unopened import draw_unopened
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize(
    "seeds", parts_of(SEEDS, check=4, test=8, of="test_no_rule_is_broken_by_heads_that_open_nothing")
)
def test_no_rule_is_broken_by_heads_that_open_nothing(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_unopened(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --unopened --seed {seed}`"
            )
