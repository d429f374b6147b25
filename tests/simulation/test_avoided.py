"""Nodes that are blamed in one start of the job or another: the next start hears of it as long as that stands."""

from __future__ import annotations

import pytest

from tests.simulation.draw_avoided import draw_avoided
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize(
    "seeds", parts_of(SEEDS, check=2, test=20, of="test_no_rule_is_broken_where_the_next_start_avoids_nodes")
)
def test_no_rule_is_broken_where_the_next_start_avoids_nodes(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_avoided(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --avoided --seed {seed}`"
            )
