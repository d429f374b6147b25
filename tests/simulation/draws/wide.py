"""Draws scenarios of a world of so many nodes, and so many spares, that its records name no more than some of them.

Half of them lose power together, the head among them, and one more a while later.
"""

from __future__ import annotations

import random

from tests.simulation.scenario import Fault, Role, Scenario

MEMBERS, SPARES = 70, 68  # of each a record names 64
LOST = 66


def draw_wide(seed: int) -> Scenario:
    """The scenario of a seed."""
    dice = random.Random(f"wide/{seed}")
    role = Role(name="trainer", restart="restart_all", nodes_min=2, nodes_max=MEMBERS, workers=(1,), work_s=30.0)
    off = [Fault(what="power_off", node=node, at=14.0) for node in range(LOST)]
    off.append(
        Fault(what="power_off", node=dice.randrange(MEMBERS, MEMBERS + SPARES), at=round(dice.uniform(36, 44), 3))
    )
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=MEMBERS + SPARES,
        lease_s=dice.choice([3.0, 10.0]),
        disk_s=(0.01, 0.05),
        max_node_losses=MEMBERS + SPARES,
        faults=tuple(off),
    )
