"""A role loses a node that it needs: a spare takes its place, of whichever role it was."""

from __future__ import annotations

import pytest

from tests.simulation.draw_stand_ins import draw_stand_ins
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize("seeds", parts_of(SEEDS, check=1, test=8, of="test_no_rule_is_broken_where_spares_stand_in"))
def test_no_rule_is_broken_where_spares_stand_in(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_stand_ins(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --stand-ins --seed {seed}`"
            )
