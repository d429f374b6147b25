"""Draws scenarios of two roles whose ranks save what is the same on all of their role, and spares of any role."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation.draws.spares import KINDS, draw_fault
from tests.simulation.scenario import Role, Scenario


def draw_state_roles(seed: int) -> Scenario:
    """The scenario of a seed: nodes are lost, and spares of one role take places of the other for a while."""
    dice = random.Random(f"state roles/{seed}")
    roles = _draw_role(dice, "trainer", 2), _draw_role(dice, "reader", 1)
    scenario = Scenario(
        seed=seed,
        roles=roles,
        nodes=dice.choice([4, 5]),
        lease_s=3.0,
        join_timeout_s=30.0,
        rejoin=dice.choice(["at_restart", "immediately"]),
        keeps_every_s=0.2,
        are_replicated=True,
        copy_s=dice.choice([None, 0.02]),
    )
    at, faults = dice.uniform(3, 8), []
    for _ in range(dice.choice([1, 2, 3])):
        faults.append(draw_fault(dice, scenario, dice.choice(KINDS), dice.randrange(scenario.nodes), at))
        at += dice.uniform(0.5, 20)
    return replace(scenario, faults=tuple(faults))


def _draw_role(dice: random.Random, name: str, most: int) -> Role:
    return Role(
        name=name,
        restart=dice.choice(["restart_all", "restart_all", "restart_role"]),
        nodes_min=1,
        nodes_max=most,
        workers=(dice.choice([1, 2]),),
        work_s=20.0,
        failure_chance=dice.choice([0.0, 0.3]),
    )
