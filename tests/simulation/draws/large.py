"""Draws scenarios of worlds of some twenty nodes that lose their head, alone or with the nodes next to it."""

from __future__ import annotations

import random

from tests.simulation.scenario import Fault, Role, Scenario

AT_S = 14.0


def draw_large(seed: int) -> Scenario:
    """The scenario of a seed."""
    dice = random.Random(f"large/{seed}")
    nodes, lost = dice.choice([18, 20, 24]), dice.choice([1, 1, 4, 10])
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=dice.choice([2, nodes - lost]),
        nodes_max=nodes,
        workers=(1,),
        work_s=22.0,
    )
    what = dice.choice(["kill_agent", "power_off"])
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes,
        lease_s=dice.choice([3.0, 3.0, 10.0]),
        disk_s=(0.01, 0.05),
        max_node_losses=nodes,
        is_large=True,
        faults=tuple(Fault(what=what, node=number, at=AT_S) for number in range(lost)),
    )
