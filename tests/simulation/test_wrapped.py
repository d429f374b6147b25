"""What a stop finds out of wrappers: whose programs had failed before it, and whose have only lost their peers."""

from __future__ import annotations

import pytest

from tests.simulation.draw_wrapped import draw_wrapped
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(400)


@pytest.mark.long
@pytest.mark.parametrize(
    "seeds", parts_of(SEEDS, check=2, test=12, of="test_no_rule_is_broken_by_failures_inside_of_wrappers")
)
def test_no_rule_is_broken_by_failures_inside_of_wrappers(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_wrapped(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --wrapped --seed {seed}`"
            )
