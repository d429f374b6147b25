"""A person drains a node, and the head is lost: the next one does without that node, too."""

from __future__ import annotations

import pytest

from tests.simulation.draw_drained import draw_drained
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize(
    "seeds", parts_of(SEEDS, check=1, test=8, of="test_no_rule_is_broken_where_a_drain_outlives_its_head")
)
def test_no_rule_is_broken_where_a_drain_outlives_its_head(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_drained(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --drained --seed {seed}`"
            )
