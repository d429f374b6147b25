"""Ranks that run on when others have exited 0, for as long as `exit_timeout` says: across restarts, and no longer."""

from __future__ import annotations

import pytest

from tests.simulation.draw_overdue import draw_overdue
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize(
    "seeds", parts_of(SEEDS, check=1, test=8, of="test_no_rule_is_broken_where_ranks_outlast_others")
)
def test_no_rule_is_broken_where_ranks_outlast_others(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_overdue(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --overdue --seed {seed}`"
            )
