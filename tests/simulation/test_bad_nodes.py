"""Nodes of several roles that break, are drained or die: no role has too few, and nobody loses a place for nothing."""

from __future__ import annotations

import pytest

from tests.simulation.draw_bad_nodes import draw_bad_nodes
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize(
    "seeds", parts_of(SEEDS, check=2, test=20, of="test_no_rule_is_broken_by_bad_nodes_of_several_roles")
)
def test_no_rule_is_broken_by_bad_nodes_of_several_roles(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_bad_nodes(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --bad-nodes --seed {seed}`"
            )
