"""Draws scenarios in which one member hears nothing any more, and tells its head goodbye, which still hears it."""

from __future__ import annotations

import random

from tests.simulation.scenario import SECOND, Fault, Role, Scenario

SHORT, LONG = 0.85, 6.0  # leases


def draw_goodbyes(seed: int) -> Scenario:
    """The scenario of a seed."""
    dice = random.Random(f"goodbyes/{seed}")
    nodes, lease_s = dice.choice([3, 3, 4]), dice.choice([9.0, 12.0])
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=dice.randint(2, nodes - 1),
        nodes_max=nodes,
        workers=dice.choice([(1,), (2,)]),
        work_s=60.0,
    )
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes,
        lease_s=lease_s,
        join_timeout_s=60.0,
        max_node_losses=dice.choice([0, 0, 1, 64]),
        is_goodbye=True,
        faults=(
            Fault(
                what="one_way",
                side=(SECOND,),
                way="in",
                at=round(dice.uniform(6, 12), 3),
                lasts_s=lease_s * dice.choice([SHORT, LONG, LONG]),
            ),
        ),
    )
