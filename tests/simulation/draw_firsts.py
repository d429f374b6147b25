"""Draws scenarios in which a node does not come, or cannot take part, from the start: often the first one."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation.draw_alone import UNFIT, draw_alone
from tests.simulation.scenario import Fault, Scenario


def draw_firsts(seed: int) -> Scenario:
    """The scenario of a seed: a world as `draw_alone` draws it, with that alone."""
    dice, scenario = random.Random(f"firsts/{seed}"), draw_alone(seed)
    what, node = dice.choice(UNFIT), dice.choice([0, 0, 1, dice.randrange(scenario.nodes)])
    lasts_s = round(dice.uniform(0, 1.2 * scenario.join_timeout_s), 3)
    roles = scenario.roles
    if what == "starts_late":  # the others are still at work when it comes
        roles = (replace(roles[0], work_s=2 * scenario.join_timeout_s), *roles[1:])
    return replace(scenario, roles=roles, faults=(Fault(what=what, node=node, lasts_s=lasts_s),))
