"""Draws scenarios in which notices are given, at any moment of any run."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation.draw import draw
from tests.simulation.scenario import Fault, Scenario

PHASES = ("gathering", "claiming", "running", "running", "stopping", "pausing")


def draw_notices(seed: int) -> Scenario:
    """The scenario of a seed: what `draw` draws for it, with a notice or some more."""
    dice = random.Random(f"notices/{seed}")
    scenario = draw(seed)
    horizon_s = 3 + 2 * max(role.work_s for role in scenario.roles)
    notices = tuple(_draw_notice(dice, horizon_s) for _ in range(dice.choice([1, 1, 2, 3])))
    return replace(scenario, faults=(*scenario.faults, *notices))


def _draw_notice(dice: random.Random, horizon_s: float) -> Fault:
    if dice.random() < 0.5:
        at = dice.choice([0.0, 0.0, round(dice.uniform(0, 3), 3)])
        return Fault(what="notice", phase=dice.choice(PHASES), nth=dice.choice([1, 1, 2]), at=at)
    return Fault(what="notice", at=round(dice.uniform(0, horizon_s), 3))
