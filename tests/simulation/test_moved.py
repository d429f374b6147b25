"""A time limit that is moved when the workers have heard of the old one: they hear of the new one as early."""

from __future__ import annotations

import pytest

from tests.simulation.draw_moved import draw_moved
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)
FOUND_AT_THE_STOP = 35  # the head asks when it is to stop the workers, and hears of the new limit then


@pytest.mark.long
def test_the_notice_of_a_moved_limit_is_not_late_if_the_head_hears_of_it_when_it_was_to_stop() -> None:
    SimulatedRun(draw_moved(FOUND_AT_THE_STOP)).play()


@pytest.mark.long
@pytest.mark.parametrize(
    "seeds", parts_of(SEEDS, check=1, test=2, of="test_no_rule_is_broken_by_a_limit_that_is_moved")
)
def test_no_rule_is_broken_by_a_limit_that_is_moved(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_moved(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --moved --seed {seed}`"
            )
