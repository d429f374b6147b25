"""Draws scenarios in which notices are given, at any moment of any run."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation.draws.general import draw
from tests.simulation.scenario import HEAD, Fault, Scenario

PHASES = ("gathering", "claiming", "running", "running", "stopping", "pausing")


def draw_notices(seed: int) -> Scenario:
    """The scenario of a seed: what `draw` draws for it, with a notice or some more; or its head is lost after one."""
    dice = random.Random(f"notices/{seed}")
    scenario = draw(seed)
    horizon_s = 3 + 2 * max(role.work_s for role in scenario.roles)
    notices = tuple(_draw_notice(dice, horizon_s) for _ in range(dice.choice([1, 1, 2, 3])))
    if seed % 8 == 1 and scenario.nodes > scenario.min_nodes:
        return _with_another_head(random.Random(f"notices/lost/{seed}"), scenario)
    return replace(scenario, faults=(*scenario.faults, *notices))


def _with_another_head(dice: random.Random, scenario: Scenario) -> Scenario:
    """The same roles, whose members hear of the notice again from a head that was none when it was given."""
    roles = tuple(replace(role, work_s=max(role.work_s, 60.0)) for role in scenario.roles)
    at = round(dice.uniform(4, 8), 3)
    lost = Fault(what=dice.choice(["kill_agent", "power_off"]), node=HEAD, at=round(at + dice.uniform(4, 20), 3))
    return replace(scenario, roles=roles, faults=(Fault(what="notice", at=at), lost))


def _draw_notice(dice: random.Random, horizon_s: float) -> Fault:
    if dice.random() < 0.5:
        at = dice.choice([0.0, 0.0, round(dice.uniform(0, 3), 3)])
        return Fault(what="notice", phase=dice.choice(PHASES), nth=dice.choice([1, 1, 2]), at=at)
    return Fault(what="notice", at=round(dice.uniform(0, horizon_s), 3))
