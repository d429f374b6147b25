"""The pauses before restarts grow up to the longest, and those of several runs are not alike."""

from __future__ import annotations

import pytest

from tests.simulation.draw_pauses import draw_pauses
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize("seeds", parts_of(SEEDS, check=2, test=8, of="test_no_rule_is_broken_by_long_pauses"))
def test_no_rule_is_broken_by_long_pauses(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_pauses(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --pauses --seed {seed}`"
            )
