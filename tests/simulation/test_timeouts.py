"""Ranks that time out in a collective: the records name who did not take part."""

from __future__ import annotations

import pytest

from tests.simulation.draw_timeouts import draw_timeouts
from tests.simulation.rules import BrokenRuleError
from tests.simulation.story import tell
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize("seeds", parts_of(SEEDS, check=1, test=6, of="test_no_rule_is_broken_by_time_outs"))
def test_no_rule_is_broken_by_time_outs(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_timeouts(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --timeouts --seed {seed}`"
            )


@pytest.mark.long
def test_the_story_of_a_run_tells_in_which_way_its_ranks_time_out() -> None:
    run = SimulatedRun(draw_timeouts(3))
    run.play()
    (way, *_) = [fault.way for fault in run.scenario.faults]
    assert f"({way})" in "\n".join(tell(run))
