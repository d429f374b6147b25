"""The batch script's machine is lost when it is head no more: somebody else ends the job."""

from __future__ import annotations

import pytest

from tests.simulation.draw_host import draw_host
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(100)


@pytest.mark.long
@pytest.mark.parametrize("seeds", parts_of(SEEDS, check=2, test=5, of="test_no_rule_is_broken_where_the_host_is_lost"))
def test_no_rule_is_broken_where_the_host_is_lost(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_host(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --host --seed {seed}`"
            )
