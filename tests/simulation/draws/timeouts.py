"""Draws scenarios in which ranks wait for one that hangs, and time out, each a little after the other.

In some a connection between two ranks breaks instead, for which nobody has waited.
"""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation.scenario import Fault, Role, Scenario

LATER_S = 15.0  # then the next attempt is at work
BREAKS = 4  # of eight seeds


def draw_timeouts(seed: int) -> Scenario:
    """The scenario of a seed: one or two moments in which ranks time out, most often because one of them hangs."""
    dice = random.Random(f"timeouts/{seed}")
    nodes, workers = dice.choice([(1, (2,)), (1, (3,)), (2, (1,)), (2, (2,)), (3, (1,)), (3, (2, 1)), (4, (2,))])
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=nodes,
        nodes_max=nodes,
        workers=workers,
        work_s=30.0,
        patience_s=dice.choice([0.0, 0.0, 2.0]),
    )
    lease_s, moments = dice.choice([3.0, 10.0]), [round(dice.uniform(4, 9), 3)]
    if dice.random() < 0.4:
        moments.append(round(moments[0] + LATER_S, 3))
    faults = []
    for at in moments:
        way = dice.choice(["one_hangs", "one_hangs", "nobody_hangs", "one_fails"])
        lasts_s = dice.choice([0.1, 0.8, 1.6])  # between the first and the last one that times out
        if way == "one_hangs":
            lasts_s = dice.choice([lasts_s, 3.2])  # some still wait when the first ones have been heard
        node = dice.randrange(nodes)  # on which one hangs
        faults.append(Fault(what="time_out", at=at, node=node, way=way, lasts_s=lasts_s))
    if len(faults) > 1 and dice.random() < 0.6:  # the same again, on another node
        faults[1] = replace(faults[0], node=faults[1].node, at=faults[1].at)
    if seed % 8 == BREAKS:
        faults[0] = replace(faults[0], way="connection_breaks")
    return Scenario(seed=seed, roles=(role,), nodes=nodes, lease_s=lease_s, faults=tuple(faults))
