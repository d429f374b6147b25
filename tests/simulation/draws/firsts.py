"""Draws scenarios in which a node does not come, or cannot take part, from the start: often the first one."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation.draws.alone import UNFIT, draw_alone
from tests.simulation.scenario import Fault, Scenario

SLEEPS = 11  # of sixteen seeds


def draw_firsts(seed: int) -> Scenario:
    """The scenario of a seed: a world as `draw_alone` draws it, with that alone."""
    dice, scenario = random.Random(f"firsts/{seed}"), draw_alone(seed)
    if seed % 16 == SLEEPS and scenario.nodes > 1:
        return _with_a_sleeper(dice, scenario)
    what, node = dice.choice(UNFIT), dice.choice([0, 0, 1, dice.randrange(scenario.nodes)])
    lasts_s = round(dice.uniform(0, 1.2 * scenario.join_timeout_s), 3)
    roles = scenario.roles
    if what == "starts_late":  # the others are still at work when it comes
        roles = (replace(roles[0], work_s=2 * scenario.join_timeout_s), *roles[1:])
    return replace(scenario, roles=roles, faults=(Fault(what=what, node=node, lasts_s=lasts_s),))


def _with_a_sleeper(dice: random.Random, scenario: Scenario) -> Scenario:
    """The first node never comes, and another one stands still from before it could claim until it has to give up."""
    timeout_s, at = 5.0, round(dice.uniform(2.0, 2.4), 3)  # all have started by then
    never = Fault(what="never_starts", node=0)
    sleeps = Fault(what="pause", node=dice.randrange(1, scenario.nodes), at=at, lasts_s=2 * timeout_s)
    return replace(scenario, join_timeout_s=timeout_s, faults=(never, sleeps))
