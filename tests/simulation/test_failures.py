"""Failures of workers, again and again: the records name each cause, and count the same ones."""

from __future__ import annotations

import pytest

from tests.simulation.draw_failures import draw_failures
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(300)


@pytest.mark.long
@pytest.mark.parametrize("seeds", parts_of(SEEDS, check=4, test=14, of="test_no_rule_is_broken_by_failures_of_workers"))
def test_no_rule_is_broken_by_failures_of_workers(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_failures(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --failures --seed {seed}`"
            )
