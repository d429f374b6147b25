"""A node that does not come, or cannot take part, from the start: the others do without it, in time."""

from __future__ import annotations

import pytest

from tests.simulation.draw_firsts import draw_firsts
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize(
    "seeds", parts_of(SEEDS, check=1, test=6, of="test_no_rule_is_broken_by_nodes_that_do_not_come")
)
def test_no_rule_is_broken_by_nodes_that_do_not_come(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_firsts(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --firsts --seed {seed}`"
            )
