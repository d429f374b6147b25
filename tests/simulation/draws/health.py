"""Draws scenarios of small worlds in which nodes are unhealthy, from the start or later, and may get well."""

from __future__ import annotations

import random
from dataclasses import replace

from hpc_elastic.plan.roles import RestartPolicy
from tests.simulation.scenario import HEAD, HEALTH, Fault, Role, Scenario

FAILURES = ("bus_worker", "bus_worker", "break_store", "kill_worker")
LOSSES = ("kill_agent", "power_off", "pause", "partition", "one_way", "reset", "stall_disk")
FOR_EVER_S = 1e6


def draw_health(seed: int) -> Scenario:
    """The scenario of a seed: in half of them nothing else goes wrong but workers."""
    dice = random.Random(f"health/{seed}")
    members, spares = dice.choice([1, 2, 2, 3]), dice.choice([0, 1, 1, 2])
    roles: tuple[Role, ...] = (_role(dice, "trainer", dice.randint(1, members), members),)
    if dice.random() < 0.3:
        roles = (*roles, _role(dice, "reader", 1, dice.choice([1, 2]), dice.choice(["restart_all", "restart_role"])))
    scenario = Scenario(
        seed=seed,
        roles=roles,
        nodes=sum(role.nodes_max for role in roles) + spares,
        lease_s=dice.choice([3.0, 10.0]),
        join_timeout_s=dice.choice([30.0, 60.0]),
        delays_s=dice.choice([(0.0,), (0.001,), (0.0, 0.001, 0.02), (0.001, 0.2)]),
        disk_s=dice.choice([(0.001,), (0.01, 0.05), (0.001, 0.01, 0.5)]),
        rejoin=dice.choice(["at_restart", "immediately"]),
    )
    horizon = 3 + roles[0].work_s
    faults = []
    for _ in range(dice.choice([1, 1, 2, 2, 3])):
        node, at = dice.randrange(scenario.nodes), dice.choice([0.0, 0.0, round(dice.uniform(0, horizon), 3)])
        lasts_s = dice.choice([FOR_EVER_S, FOR_EVER_S, round(dice.uniform(1, 90), 3)])
        faults.append(Fault(what=HEALTH, node=node, at=at, lasts_s=lasts_s))
        if at:  # it is found because something fails there
            after_s = dice.uniform(0, 5)
            faults.append(Fault(what=dice.choice(FAILURES), node=node, at=round(at + after_s, 3)))
    if dice.random() < 0.5:
        for _ in range(dice.choice([1, 1, 2])):
            faults.append(_loss(dice, scenario, dice.uniform(0, horizon)))
    return replace(scenario, faults=tuple(faults))


def _role(
    dice: random.Random, name: str, nodes_min: int, nodes_max: int, restart: RestartPolicy = "restart_all"
) -> Role:
    return Role(
        name=name,
        restart=restart,
        nodes_min=nodes_min,
        nodes_max=nodes_max,
        workers=dice.choice([(1,), (2,)]),
        work_s=dice.choice([20.0, 100.0]),
        patience_s=dice.choice([0.0, 0.0, 30.0]),
    )


def _loss(dice: random.Random, scenario: Scenario, at: float) -> Fault:
    what, node = dice.choice(LOSSES), dice.choice([HEAD, dice.randrange(scenario.nodes)])
    fault = Fault(what=what, node=node, at=round(at, 3))
    if what in ("kill_agent", "power_off", "reset"):
        return fault
    lasts_s = round(scenario.lease_s * dice.choice([0.3, 0.7, 1.3, 2.2, 3.5]), 3)
    if what not in ("partition", "one_way"):
        return replace(fault, lasts_s=lasts_s)
    side = tuple(number for number in range(scenario.nodes) if dice.random() < 0.4) or (0,)
    return replace(fault, side=side, lasts_s=lasts_s, way=dice.choice(["in", "out"]) if what == "one_way" else "both")
