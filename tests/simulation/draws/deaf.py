"""Draws scenarios in which a member hears nothing any more, is still heard for a while, and then is cut off.

Its head goes on without it when its lease is over and it has surely killed its workers: its beats say when it was there
last, and its silence begins later than its deafness.
"""

from __future__ import annotations

import random

from tests.simulation.scenario import SECOND, Fault, Role, Scenario

LASTS = 6.0  # leases


def draw_deaf(seed: int) -> Scenario:
    """The scenario of a seed."""
    dice = random.Random(f"deaf/{seed}")
    nodes, lease_s = dice.choice([2, 3, 4]), dice.choice([3.0, 10.0])
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=dice.randint(1, nodes - 1),
        nodes_max=nodes - dice.choice([0, 0, 1]) if nodes > 2 else nodes,
        workers=dice.choice([(1,), (2,)]),
        work_s=60.0,
    )
    at = round(dice.uniform(4, 20), 3)
    silent_at = round(at + lease_s * dice.uniform(0.2, 0.64), 3)  # it fences, and says so, two thirds after `at`
    lasts_s = LASTS * lease_s
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes,
        lease_s=lease_s,
        delays_s=dice.choice([(0.0,), (0.001,), (0.0, 0.001, 0.02)]),
        disk_s=dice.choice([(0.001,), (0.01, 0.05)]),
        faults=(
            Fault(what="one_way", side=(SECOND,), way="in", at=at, lasts_s=lasts_s),
            Fault(what="partition", side=(SECOND,), at=silent_at, lasts_s=lasts_s),
        ),
    )
