"""Failures in several roles: each restarts as its policy says, and once."""

from __future__ import annotations

import pytest

from tests.simulation.draw_roles import draw_roles
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize(
    "seeds", parts_of(SEEDS, check=1, test=6, of="test_no_rule_is_broken_by_failures_in_several_roles")
)
def test_no_rule_is_broken_by_failures_in_several_roles(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_roles(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --roles --seed {seed}`"
            )
