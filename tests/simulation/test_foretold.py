"""One thing after the other: what comes of it is foretold from the scenario alone, and comes."""

from __future__ import annotations

import pytest

from tests.simulation.draws.foretold import draw_foretold
from tests.simulation.world import SimulatedRun


@pytest.mark.long
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(32044, id="a drained node stays out when head after head is lost"),
        pytest.param(880010, id="a failure is foretold only where a worker is left"),
        pytest.param(880047, id="a node that fell silent long ago has time to come back when it is needed"),
        pytest.param(880055, id="who is back takes part after a restart that was asked for"),
        pytest.param(28000018, id="a drained node that is there keeps no spare out"),
        pytest.param(72000485, id="the last worker ends before an announced stop is due"),
        pytest.param(880145, id="a head that took over awaits its silent predecessor when it is needed"),
        pytest.param(84000256, id="a node that was lost twice stays out when it is back"),
        pytest.param(84003672, id="a drained node looks for a head that stands still, as members do"),
        pytest.param(84004255, id="who is back takes part after a pause of the head"),
        pytest.param(84001024, id="a pause of a drained head costs the one node that is left an attempt"),
    ],
)
def test_a_schedule_that_broke_a_rule_breaks_none_any_more(seed: int) -> None:
    SimulatedRun(draw_foretold(seed)).play()
