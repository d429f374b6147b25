"""Heads that are lost as an attempt opens: a member that has not heard of it waits until that head has fenced."""

from __future__ import annotations

import pytest

from tests.simulation.draw_untold import draw_untold
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize(
    "seeds", parts_of(SEEDS, check=4, test=8, of="test_no_rule_is_broken_by_heads_that_tell_nobody")
)
def test_no_rule_is_broken_by_heads_that_tell_nobody(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_untold(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --untold --seed {seed}`"
            )
