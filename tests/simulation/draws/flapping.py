"""Draws scenarios in which one node is lost and comes back, again and again: the head's own node among them."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation.scenario import HEAD, Fault, Role, Scenario

CUTS = ("partition", "partition", "partition", "one_way", "pause", "unreachable")


def draw_flapping(seed: int) -> Scenario:
    """The scenario of a seed: in half of them nothing else goes wrong but workers."""
    dice = random.Random(f"flapping/{seed}")
    members, spares = dice.choice([2, 2, 3, 3, 4]), dice.choice([0, 0, 1, 2])
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=dice.randint(1, members),
        nodes_max=members,
        workers=dice.choice([(1,), (2,)]),
        work_s=dice.choice([200.0, 400.0]),
        patience_s=dice.choice([0.0, 0.0, 30.0]),
    )
    scenario = Scenario(
        seed=seed,
        roles=(role,),
        nodes=members + spares,
        max_restarts=8,
        no_progress_limit=9,
        lease_s=dice.choice([3.0, 10.0]),
        join_timeout_s=60.0,
        delays_s=dice.choice([(0.0,), (0.001,), (0.0, 0.001, 0.02)]),
        disk_s=dice.choice([(0.001,), (0.01, 0.05), (0.001, 0.01, 0.5)]),
        rejoin=dice.choice(["at_restart", "immediately"]),
    )
    node, faults = dice.choice([HEAD, dice.randrange(scenario.nodes), scenario.nodes - 1]), []
    at = dice.uniform(3, 20)
    for _ in range(dice.choice([2, 3, 3, 4])):
        lasts_s = scenario.lease_s * dice.choice([1.2, 2.2, 2.2, 3.5])
        faults.append(_cut(dice, node, at, lasts_s))
        at += lasts_s + scenario.lease_s * dice.uniform(0.3, 2)
        if dice.random() < 0.8:  # so that there is an attempt which it could take part in
            faults.append(Fault(what="kill_worker", node=dice.randrange(scenario.nodes), at=round(at, 3)))
        at += scenario.lease_s * dice.uniform(0.3, 2)
    if dice.random() < 0.5:
        other, when = dice.choice([HEAD, dice.randrange(scenario.nodes)]), dice.uniform(3, at)
        faults.append(_cut(dice, other, when, scenario.lease_s * dice.choice([1.2, 2.2])))
    if dice.random() < 0.2:
        victim = dice.randrange(scenario.nodes)
        faults.append(Fault(what=dice.choice(["kill_agent", "power_off"]), node=victim, at=round(dice.uniform(3, at))))
    return replace(scenario, faults=tuple(faults))


def _cut(dice: random.Random, node: int, at: float, lasts_s: float) -> Fault:
    what = dice.choice(CUTS)
    fault = Fault(what=what, node=node, at=round(at, 3), lasts_s=round(lasts_s, 3))
    if what == "pause":
        return fault
    return replace(fault, side=(node,), way=dice.choice(["in", "out"]) if what == "one_way" else "both")
