"""Draws scenarios in which ranks save now and then, and workers, agents and nodes are lost meanwhile."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation.scenario import HEAD, SECOND, Fault, Role, Scenario

KINDS = ("kill_agent", "kill_agent", "power_off", "partition", "one_way", "pause")


def draw_saves(seed: int) -> Scenario:
    """The scenario of a seed: in half of them nothing goes wrong but workers and agents that die."""
    dice = random.Random(f"saves/{seed}")
    members, spares = dice.choice([2, 2, 3, 3, 4, 5]), dice.choice([0, 0, 1])
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=dice.randint(1, members),
        nodes_max=members,
        workers=dice.choice([(1,), (2,)]),
        work_s=dice.choice([60.0, 120.0]),
        patience_s=dice.choice([0.0, 0.0, 30.0]),
    )
    scenario = Scenario(
        seed=seed,
        roles=(role,),
        nodes=members + spares,
        lease_s=dice.choice([3.0, 3.0, 10.0]),
        delays_s=dice.choice([(0.0,), (0.001,), (0.0, 0.001, 0.02)]),
        disk_s=dice.choice([(0.001,), (0.01, 0.05)]),
        rejoin=dice.choice(["at_restart", "immediately"]),
        save_s=dice.choice([5.0, 15.0, 19.0]),
    )
    is_gentle, at, faults = dice.random() < 0.5, dice.uniform(3, 30), []
    for _ in range(dice.choice([1, 2, 2, 3])):
        node = dice.choice([dice.randrange(scenario.nodes), dice.randrange(scenario.nodes), HEAD, SECOND])
        what = dice.choice(["kill_agent", "kill_agent", "kill_worker"] if is_gentle else KINDS)
        fault = Fault(what=what, node=node, at=round(at, 3))
        if what in ("partition", "one_way", "pause"):
            side = tuple(dice.sample(range(scenario.nodes), 2)) if dice.random() < 0.5 else (node,)
            fault = replace(fault, side=side, lasts_s=round(scenario.lease_s * dice.choice([0.7, 1.2, 2.2, 6.0]), 3))
        if what == "one_way":
            fault = replace(fault, way=dice.choice(["in", "out"]))
        faults.append(fault)
        at += dice.choice([0.0, 0.01, 1.0, dice.uniform(0, 2.5 * scenario.lease_s), dice.uniform(0, 40)])
    if dice.random() < 0.2:  # alone: where the network fails as well, two worlds for a moment are not excluded
        node = dice.choice([SECOND, dice.randrange(1, scenario.nodes)])
        faults = [Fault(what="reset", node=node, at=round(dice.uniform(3, 40), 3))]
    return replace(scenario, faults=tuple(faults))
