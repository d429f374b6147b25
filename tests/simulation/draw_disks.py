"""Draws scenarios in which the run directory refuses one agent for a while: at the start, at a claim, at the end."""

from __future__ import annotations

import random

from tests.simulation.scenario import HEAD, Fault, Role, Scenario

AT_S = 8.0


def draw_disks(seed: int) -> Scenario:
    """The scenario of a seed."""
    dice = random.Random(f"disks/{seed}")
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
