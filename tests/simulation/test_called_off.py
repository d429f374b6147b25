"""An agent that has lost its head gets a TERM: it leaves at once."""

from __future__ import annotations

import pytest

from tests.simulation.draw_called_off import draw_called_off
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize(
    "seeds", parts_of(SEEDS, check=1, test=8, of="test_no_rule_is_broken_by_a_term_during_a_search")
)
def test_no_rule_is_broken_by_a_term_during_a_search(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_called_off(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --called-off --seed {seed}`"
            )
