"""Several notices: members are told of an end that is sooner, and of no other one."""

from __future__ import annotations

import pytest

from tests.simulation.draw_second_notices import draw_second_notices
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize("seeds", parts_of(SEEDS, check=2, test=8, of="test_no_rule_is_broken_by_second_notices"))
def test_no_rule_is_broken_by_second_notices(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_second_notices(seed)).play()
        except BrokenRuleError as error:
            again = f"python -m tests.simulation -v --second-notices --seed {seed}"
            pytest.fail(f"seed {seed}: {error}; play it again with `{again}`")
