"""Draws scenarios in which the time limit of the job is moved when its workers have heard of the old one already."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation.draws.limits import draw_limits
from tests.simulation.scenario import Fault, Scenario

RESERVE_S = 35.0  # before the end the workers are stopped by then, and some seconds


def draw_moved(seed: int) -> Scenario:
    """The scenario of a seed: as `draw_limits` draws it, with that end."""
    dice, scenario = random.Random(f"moved/{seed}"), draw_limits(seed)
    lead_s = dice.choice([45.0, 60.0])
    left_s = lead_s + dice.choice([10.0, 30.0])
    at = round(left_s - dice.uniform(RESERVE_S, lead_s - 3), 3)
    moved = Fault(what="limit_moves", at=at, lasts_s=left_s + dice.choice([40.0, 100.0]))
    return replace(
        scenario,
        lead_s=lead_s,
        time_left_s=left_s,
        knows_time=dice.random() < 0.5,
        is_scheduler_silent=False,
        heeds_notice=False,
        faults=(moved,),
    )
