"""What a restart needs of the disk does not wait for what can wait."""

from __future__ import annotations

import pytest

from tests.simulation.draw_busy import draw_busy
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize("seeds", parts_of(SEEDS, check=2, test=6, of="test_no_rule_is_broken_by_busy_disks"))
def test_no_rule_is_broken_by_busy_disks(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_busy(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --busy --seed {seed}`"
            )
