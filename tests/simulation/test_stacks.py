"""Whoever asks where the ranks are is told by every agent, and nothing stops."""

from __future__ import annotations

import pytest

from tests.simulation.draw_stacks import draw_stacks
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize(
    "seeds", parts_of(SEEDS, check=2, test=10, of="test_no_rule_is_broken_where_people_ask_for_stacks")
)
def test_no_rule_is_broken_where_people_ask_for_stacks(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_stacks(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --stacks --seed {seed}`"
            )
