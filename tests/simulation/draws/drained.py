"""Draws scenarios in which a person drains a node, and the head is lost that has heard of it, or has not yet."""

from __future__ import annotations

import random

from tests.simulation.scenario import HEAD, Fault, Role, Scenario

LOST = ("kill_agent", "kill_agent", "power_off")


def draw_drained(seed: int) -> Scenario:
    """The scenario of a seed: enough nodes are left without both."""
    dice = random.Random(f"drained/{seed}")
    nodes, spares = dice.choice([3, 4]), dice.choice([0, 1])
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=dice.randint(1, nodes - 2),
        nodes_max=nodes,
        workers=(dice.choice([1, 2]),),
        work_s=40.0,
    )
    at = dice.uniform(4.0, 12.0)
    drain = Fault(what="ask_drain", node=dice.randrange(1, nodes), at=round(at, 3))
    lost = Fault(what=dice.choice(LOST), node=HEAD, at=round(at + dice.choice([0.1, dice.uniform(0.5, 8.0)]), 3))
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes + spares,
        lease_s=3.0,
        join_timeout_s=30.0,
        disk_s=dice.choice([(0.001,), (0.01, 0.05)]),
        faults=(drain, lost),
    )
