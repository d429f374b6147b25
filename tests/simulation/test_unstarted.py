"""A role's ignored workers start in one attempt and not in the next: who reads the events is not told otherwise."""

from __future__ import annotations

import pytest

from tests.simulation.draw_unstarted import draw_unstarted
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize(
    "seeds", parts_of(SEEDS, check=1, test=8, of="test_no_rule_is_broken_where_ignored_workers_do_not_start")
)
def test_no_rule_is_broken_where_ignored_workers_do_not_start(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_unstarted(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --unstarted --seed {seed}`"
            )
