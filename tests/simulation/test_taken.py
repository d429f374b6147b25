"""Ranks that save when they hear of a notice, and exit 75: schedules that once broke a rule."""

from __future__ import annotations

import pytest

from tests.simulation.draws.taken import draw_taken
from tests.simulation.world import SimulatedRun


@pytest.mark.parametrize(
    "seed",
    [pytest.param(10220000, id="a rank that ended to go on later, while another role starts again, is remembered")],
)
def test_a_schedule_that_broke_a_rule_breaks_none(seed: int) -> None:
    SimulatedRun(draw_taken(seed)).play()
