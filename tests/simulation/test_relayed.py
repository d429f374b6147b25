"""An allocation ends just after a node is lost: others write the state that it had copied to them."""

from __future__ import annotations

import pytest

from tests.simulation.draw_relayed import draw_relayed
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize(
    "seeds", parts_of(SEEDS, check=1, test=8, of="test_no_rule_is_broken_where_others_write_a_state")
)
def test_no_rule_is_broken_where_others_write_a_state(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_relayed(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --relayed --seed {seed}`"
            )
