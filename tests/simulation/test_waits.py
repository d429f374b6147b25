"""A person asks for something while a head waits for nodes without which it cannot go on: who wants the end gets it."""

from __future__ import annotations

import pytest

from tests.simulation.draw_waits import draw_waits
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize("seeds", parts_of(SEEDS, check=1, test=8, of="test_no_rule_is_broken_while_nodes_are_awaited"))
def test_no_rule_is_broken_while_nodes_are_awaited(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_waits(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --waits --seed {seed}`"
            )
