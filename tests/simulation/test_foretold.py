"""One thing after the other: what comes of it is foretold from the scenario alone, and comes."""

from __future__ import annotations

import pytest

from tests.simulation.draw_foretold import draw_foretold
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.parametrize("seeds", parts_of(SEEDS, check=4, test=12, of="test_all_that_is_foretold_comes"))
def test_all_that_is_foretold_comes(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_foretold(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --foretold --seed {seed}`"
            )
