"""Draws scenarios in which the run directory refuses one agent for a while: at the start, at a claim, at the end.

In some it refuses all who look for a successor of a head that is silent.
"""

from __future__ import annotations

import random

from tests.simulation.scenario import HEAD, Fault, Role, Scenario

AT_S = 8.0
SEARCH = 4  # of eight seeds


def draw_disks(seed: int) -> Scenario:
    """The scenario of a seed."""
    dice = random.Random(f"disks/{seed}")
    if seed % 8 == SEARCH:
        return _draw_search(seed, dice)
    nodes, when = dice.choice([1, 2, 3]), dice.choice(["claim", "claim", "result", "start"])
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=dice.randint(1, nodes),
        nodes_max=nodes,
        workers=(1,),
        work_s=20.0,
    )
    lasts_s = dice.choice([1.0, 3.0, 15.0, 25.0, 50.0])
    faults = [Fault(what="disk_fails", node=HEAD, at=AT_S, lasts_s=lasts_s)]
    if when == "claim":
        faults.append(Fault(what="kill_worker", node=dice.randrange(nodes), at=AT_S + 0.5))
    elif when == "result":
        faults = [Fault(what="disk_fails", node=HEAD, at=15.0, lasts_s=max(12.0, min(25.0, lasts_s)))]
    else:
        faults = [Fault(what="disk_fails", node=0, at=0.0, lasts_s=lasts_s)]
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes,
        lease_s=dice.choice([3.0, 10.0]),
        join_timeout_s=120.0,
        is_refused_disk=True,
        faults=tuple(faults),
    )


def _draw_search(seed: int, dice: random.Random) -> Scenario:
    """The head's machine loses its power, and the others read the records until they may take its place."""
    nodes, lease_s = dice.choice([2, 3, 4]), 10.0
    role = Role(name="trainer", restart="restart_all", nodes_min=1, nodes_max=nodes, workers=(1,), work_s=40.0)
    lasts_s = dice.choice([0.5, 1.2])
    at = AT_S + dice.choice([0.7, 0.8]) * lease_s
    refuse = [Fault(what="disk_fails", node=node, at=at, lasts_s=lasts_s) for node in range(1, nodes)]
    faults = (Fault(what="power_off", node=0, at=AT_S), *refuse)
    return Scenario(seed=seed, roles=(role,), nodes=nodes, lease_s=lease_s, join_timeout_s=60.0, faults=faults)
