"""A node without which the run cannot go on is cut off: the run goes on as soon as it is back, and waits so long."""

from __future__ import annotations

import pytest

from tests.simulation.draw_quorum import draw_quorum
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize("seeds", parts_of(SEEDS, check=1, test=8, of="test_no_rule_is_broken_by_a_lost_quorum"))
def test_no_rule_is_broken_by_a_lost_quorum(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_quorum(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --quorum --seed {seed}`"
            )
