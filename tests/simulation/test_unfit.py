"""Nodes without which the run cannot begin, and that cannot take part: the result names all that could say so."""

from __future__ import annotations

import pytest

from tests.simulation.draw_unfit import draw_unfit
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize("seeds", parts_of(SEEDS, check=1, test=4, of="test_no_rule_is_broken_by_unfit_nodes"))
def test_no_rule_is_broken_by_unfit_nodes(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_unfit(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --unfit --seed {seed}`"
            )
