"""A node that cannot reach the first head: it tries as often as it is to, and then nobody waits for it."""

from __future__ import annotations

import pytest

from tests.simulation.draw_search import draw_search
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize(
    "seeds", parts_of(SEEDS, check=4, test=12, of="test_no_rule_is_broken_by_a_node_that_is_cut_off")
)
def test_no_rule_is_broken_by_a_node_that_is_cut_off(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_search(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --search --seed {seed}`"
            )
