"""Draws scenarios of several roles that lose a node which they need, and have a spare that was another role's."""

from __future__ import annotations

import random

from tests.simulation.scenario import Fault, Role, Scenario

LOST = ("kill_agent", "power_off")
NEVER = ("never_starts", "starts_late")


def draw_stand_ins(seed: int) -> Scenario:
    """The scenario of a seed: in every fourth one a node does not come at first, whose place no spare may take."""
    dice = random.Random(f"stand-ins/{seed}")
    roles = []
    for name in ("trainer", "reader", "watcher")[: dice.choice([2, 2, 3])]:
        nodes = dice.choice([1, 1, 2])
        roles.append(
            Role(
                name=name,
                restart=dice.choice(["restart_all", "restart_all", "restart_role"]),
                nodes_min=nodes,
                nodes_max=nodes,
                workers=dice.choice([(1,), (2,)]),
                work_s=40.0,
            )
        )
    members = sum(role.nodes_max for role in roles)
    nodes = members + dice.choice([1, 1, 2])
    if seed % 4 == 0:
        what = dice.choice(NEVER)
        faults = [Fault(what=what, node=dice.randrange(1, members), lasts_s=round(dice.uniform(4, 20), 3))]
    else:
        what, at = dice.choice(LOST), dice.uniform(4, 20)
        faults = [Fault(what=what, node=dice.randrange(1, members), at=round(at, 3))]
        if dice.random() < 0.5:
            node = dice.randrange(1, nodes)
            faults.append(Fault(what=dice.choice(LOST), node=node, at=round(at + dice.uniform(0, 15), 3)))
    return Scenario(
        seed=seed,
        roles=tuple(roles),
        nodes=nodes,
        lease_s=dice.choice([3.0, 6.0]),
        join_timeout_s=15.0,
        faults=tuple(faults),
    )
