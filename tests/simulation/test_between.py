"""A node that is lost between two attempts: the next one comes without it, or not at all."""

from __future__ import annotations

import pytest

from tests.simulation.draw_between import draw_between
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize(
    "seeds", parts_of(SEEDS, check=2, test=20, of="test_no_rule_is_broken_where_a_node_is_lost_between_two_attempts")
)
def test_no_rule_is_broken_where_a_node_is_lost_between_two_attempts(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_between(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --between --seed {seed}`"
            )
