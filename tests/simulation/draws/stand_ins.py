"""Draws scenarios of several roles that lose a node which they need, and have a spare that was another role's."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation.scenario import Fault, Role, Scenario

LOST = ("kill_agent", "power_off")
CALLED_BACK = 5  # of eight seeds
HAS_ROOM = 6
NEVER = ("never_starts", "starts_late")


def draw_stand_ins(seed: int) -> Scenario:
    """The scenario of a seed: in every fourth one a node does not come at first, whose place no spare may take."""
    if seed % 8 == CALLED_BACK:
        return _draw_called_back(seed)
    if seed % 8 == HAS_ROOM:
        return _draw_room(seed)
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


def _draw_called_back(seed: int) -> Scenario:
    """A spare takes a place of another role, which could do without it, and then its own role loses a node."""
    dice = random.Random(f"stand-ins/called back/{seed}")
    most, lease_s = dice.choice([2, 2, 3]), dice.choice([3.0, 6.0])
    roles = tuple(
        Role(
            name=name,
            restart=dice.choice(["restart_all", "restart_all", "restart_role"]),
            nodes_min=1,
            nodes_max=nodes,
            workers=(1,),
            work_s=60.0,
        )
        for name, nodes in (("trainer", most), ("reader", 1))
    )
    at = dice.uniform(4, 10)
    what = dice.choice(LOST)
    later = at + 2 * lease_s + dice.uniform(2, 10)
    first, second = Fault(what=what, node=dice.randrange(1, most), at=round(at, 3)), Fault(what=what, node=most)
    return Scenario(
        seed=seed,
        roles=roles,
        nodes=most + 2,
        lease_s=lease_s,
        join_timeout_s=15.0,
        faults=(first, replace(second, at=round(later, 3))),
    )


def _draw_room(seed: int) -> Scenario:
    """A node comes late for which its own role has room, and another role has a place that is empty."""
    dice = random.Random(f"stand-ins/room/{seed}")
    most, lease_s = dice.choice([2, 3]), dice.choice([3.0, 6.0])
    roles = tuple(
        Role(
            name=name,
            restart="restart_all",
            nodes_min=1,
            nodes_max=nodes,
            workers=(1,),
            work_s=60.0,
        )
        for name, nodes in (("trainer", 2), ("reader", most))
    )
    comes_s = round(dice.uniform(8, 14), 3)
    late = Fault(what="starts_late", node=1 + most, lasts_s=comes_s)
    lost = Fault(what=dice.choice(LOST), node=1, at=round(comes_s + dice.uniform(-2, 6), 3))
    return Scenario(seed=seed, roles=roles, nodes=2 + most, lease_s=lease_s, join_timeout_s=5.0, faults=(late, lost))
