"""A node that is found unhealthy while roles restart: it loses its place, and the restart is widened to all roles."""

from __future__ import annotations

import pytest

from tests.simulation.draw_checks import draw_checks
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize(
    "seeds",
    parts_of(SEEDS, check=1, test=8, of="test_no_rule_is_broken_by_checks_while_roles_restart"),
)
def test_no_rule_is_broken_by_checks_while_roles_restart(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_checks(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --checks --seed {seed}`"
            )
