"""A time limit that is moved when the workers have heard of the old one: they hear of the new one as early."""

from __future__ import annotations

import pytest

from tests.simulation.draws.moved import draw_moved
from tests.simulation.world import SimulatedRun

FOUND_AT_THE_STOP = 35  # the head asks when it is to stop the workers, and hears of the new limit then


@pytest.mark.long
def test_the_notice_of_a_moved_limit_is_not_late_if_the_head_hears_of_it_when_it_was_to_stop() -> None:
    SimulatedRun(draw_moved(FOUND_AT_THE_STOP)).play()
