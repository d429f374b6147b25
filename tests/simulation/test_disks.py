"""A run directory that refuses one agent for a while: it costs the time, and nothing else before half a minute."""

from __future__ import annotations

import pytest

from tests.simulation.draw_disks import draw_disks
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.parametrize("seeds", parts_of(SEEDS, check=4, test=14, of="test_no_rule_is_broken_by_a_disk_that_refuses"))
def test_no_rule_is_broken_by_a_disk_that_refuses(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_disks(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --disks --seed {seed}`"
            )
