"""Ranks that time out in a collective: the records name who did not take part."""

from __future__ import annotations

import pytest

from tests.simulation.draws.timeouts import draw_timeouts
from tests.simulation.story import tell
from tests.simulation.world import SimulatedRun


@pytest.mark.long
def test_the_story_of_a_run_tells_in_which_way_its_ranks_time_out() -> None:
    run = SimulatedRun(draw_timeouts(3))
    run.play()
    (way, *_) = [fault.way for fault in run.scenario.faults]
    assert f"({way})" in "\n".join(tell(run))
