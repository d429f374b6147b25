"""One thing goes wrong and no other: how soon the run goes on, and what agents leave behind."""

from __future__ import annotations

import pytest

from tests.simulation.draws.alone import draw_alone
from tests.simulation.world import SimulatedRun

SEEDS = range(600)


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
