"""Draws scenarios in which people ask where the ranks are: else workers go wrong alone, and in some the head."""

from __future__ import annotations

import random

from tests.simulation.rules.stacks import STACKS
from tests.simulation.scenario import HEAD, Fault, Role, Scenario

OTHERS = ("kill_worker", "exit_worker", "kill_agent", "power_off")


def draw_stacks(seed: int) -> Scenario:
    """The scenario of a seed."""
    dice = random.Random(f"stacks/{seed}")
    members, spares = dice.choice([1, 2, 3]), dice.choice([0, 0, 1])
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=dice.randint(1, members),
        nodes_max=members,
        workers=(dice.choice([1, 2]),),
        work_s=dice.choice([15.0, 30.0]),
        patience_s=dice.choice([0.0, 4.0]),
    )
    at = dice.uniform(3.0, 8.0)
    faults = []
    for _ in range(dice.choice([1, 2, 3])):
        faults.append(Fault(what=dice.choice(STACKS), at=round(at, 3)))
        at += dice.choice([0.001, 0.5, dice.uniform(1, 10)])
    if dice.random() < 0.5:
        what = dice.choice([*OTHERS[:2], *OTHERS])
        node = HEAD if what in ("kill_agent", "power_off") else dice.randrange(members)
        faults.append(Fault(what=what, node=node, at=round(dice.uniform(3, 12), 3)))
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=members + spares,
        lease_s=dice.choice([3.0, 10.0]),
        join_timeout_s=30.0,
        disk_s=dice.choice([(0.001,), (0.01, 0.05)]),
        faults=tuple(faults),
    )
