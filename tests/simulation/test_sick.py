"""An unhealthy node that is lost leaves as many nodes as there were: none of the others is missing for it."""

from __future__ import annotations

import pytest

from tests.simulation.draws.sick import draw_sick
from tests.simulation.rules.invariants import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize(
    "seeds", parts_of(SEEDS, check=3, test=6, of="test_no_rule_is_broken_by_a_lost_unhealthy_node")
)
def test_no_rule_is_broken_by_a_lost_unhealthy_node(seeds: range) -> None:
    for seed in seeds:
        run = SimulatedRun(draw_sick(seed))
        try:
            run.play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --sick --seed {seed}`"
            )
        assert (run.disk.results[0].reason, run.disk.results[0].attempts) == ("succeeded", 2)
