"""Draws scenarios in which a person asks for something while a head waits for nodes without which it cannot go on."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation.draws.quorum import draw_quorum
from tests.simulation.scenario import Fault, Scenario

ASKED = ("stop", "stop", "ask_stop", "ask_stop", "ask_restart", "notice")
LOST_AFTER, WAITS = 0.8, 2.6  # leases after the cut: then a head has lost the nodes, and then it waits no more
TIMES_S = (0.0, 5.0, 120.0)  # of an announced stop


def draw_waits(seed: int) -> Scenario:
    """The scenario of a seed."""
    scenario = draw_quorum(seed)
    dice = random.Random(f"waits/{seed}")
    (cut,) = scenario.faults
    what, lease_s = dice.choice(ASKED), scenario.lease_s
    asked = Fault(
        what=what,
        at=round(cut.at + lease_s * dice.uniform(LOST_AFTER, WAITS), 3),
        lasts_s=dice.choice(TIMES_S) if what in ("ask_stop", "notice") else 0.0,
    )
    return replace(scenario, is_quorum=False, faults=(cut, asked))
