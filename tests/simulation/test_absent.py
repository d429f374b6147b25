"""Nodes that do not come, or cannot take part: how long they are waited for, and that each is named with its reason."""

from __future__ import annotations

import pytest

from tests.simulation.draw_absent import draw_absent
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize("seeds", parts_of(SEEDS, check=2, test=8, of="test_no_rule_is_broken_where_nodes_are_absent"))
def test_no_rule_is_broken_where_nodes_are_absent(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_absent(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --absent --seed {seed}`"
            )
