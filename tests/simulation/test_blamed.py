"""A node that dies in start after start of the job: it is left out for as long as it is blamed, and no longer."""

from __future__ import annotations

import pytest

from tests.simulation.draw_blamed import draw_blamed
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(60)


@pytest.mark.long
@pytest.mark.parametrize("seeds", parts_of(SEEDS, check=1, test=4, of="test_no_rule_is_broken_by_blamed_nodes"))
def test_no_rule_is_broken_by_blamed_nodes(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_blamed(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --blamed --seed {seed}`"
            )
