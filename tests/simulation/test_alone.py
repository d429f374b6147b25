"""One thing goes wrong and no other: how soon the run goes on, and what agents leave behind."""

from __future__ import annotations

import pytest

from tests.simulation.draw_alone import draw_alone
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun

SEEDS = range(600)
PART = 100


@pytest.mark.parametrize(
    "first", [pytest.param(first, marks=[pytest.mark.long] * (first > 0)) for first in range(0, len(SEEDS), PART)]
)
def test_no_rule_is_broken_where_one_thing_goes_wrong(first: int) -> None:
    for seed in SEEDS[first : first + PART]:
        try:
            SimulatedRun(draw_alone(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --alone --seed {seed}`"
            )


def test_most_kinds_of_ends_are_drawn() -> None:
    reasons = set()
    for seed in SEEDS[:PART]:
        run = SimulatedRun(draw_alone(seed))
        run.play()
        reasons |= {result.reason for result in run.disk.results}
    assert reasons >= {"succeeded", "restarts_used_up", "stop_requested", "terminated", "node_lost"}
