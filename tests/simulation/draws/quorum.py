"""Draws scenarios in which a node without which the run cannot go on is cut off, and is back in time, or never."""

from __future__ import annotations

import random

from tests.simulation.scenario import Fault, Role, Scenario

SHORTEST, LONGEST = 1.3, 2.3  # leases; a head waits for two, from the moment at which it has lost the node
NEVER_BACK = 4  # of so many seeds one
NO_LOSSES_LEFT = 8
FOR_EVER_S = 1e6


def draw_quorum(seed: int) -> Scenario:
    """The scenario of a seed."""
    dice = random.Random(f"quorum/{seed}")
    nodes, lease_s = dice.choice([2, 2, 3]), dice.choice([3.0, 10.0])
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=nodes,
        nodes_max=nodes,
        workers=dice.choice([(1,), (2,)]),
        work_s=40.0,
    )
    lasts_s = round(lease_s * dice.uniform(SHORTEST, LONGEST), 3)
    cut = Fault(
        what="partition",
        side=(dice.randrange(nodes),),
        at=round(dice.uniform(5, 12), 3),
        lasts_s=FOR_EVER_S if seed % NEVER_BACK == 0 else lasts_s,
    )
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes,
        lease_s=lease_s,
        join_timeout_s=60.0,
        max_node_losses=0 if seed % NO_LOSSES_LEFT == 5 else dice.choice([2, 64]),
        is_quorum=True,
        faults=(cut,),
    )
