"""One thing goes wrong and no other: how soon the run goes on, and what agents leave behind."""

from __future__ import annotations

import pytest

from tests.simulation.draw_alone import draw_alone
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(600)


@pytest.mark.long
@pytest.mark.parametrize(
    "seeds", parts_of(SEEDS, check=8, test=24, of="test_no_rule_is_broken_where_one_thing_goes_wrong")
)
def test_no_rule_is_broken_where_one_thing_goes_wrong(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_alone(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --alone --seed {seed}`"
            )


@pytest.mark.long
def test_most_kinds_of_ends_are_drawn() -> None:
    missing = {"succeeded", "restarts_used_up", "stop_requested", "terminated", "node_lost"}
    for seed in SEEDS[:100]:
        run = SimulatedRun(draw_alone(seed))
        run.play()
        missing -= {result.reason for result in run.disk.results}
        if not missing:
            break
    assert not missing
