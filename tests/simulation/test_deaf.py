"""A member that hears nothing any more: its head goes on without it once its workers are surely gone."""

from __future__ import annotations

import pytest

from tests.simulation.draw_deaf import draw_deaf
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize("seeds", parts_of(SEEDS, check=1, test=8, of="test_no_rule_is_broken_by_a_deaf_member"))
def test_no_rule_is_broken_by_a_deaf_member(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_deaf(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --deaf --seed {seed}`"
            )
