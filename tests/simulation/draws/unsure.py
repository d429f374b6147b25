"""Draws scenarios in which a head makes its claim and is told of an error: its next try finds that it is its own."""

from __future__ import annotations

import random

from tests.simulation.scenario import HEAD, Fault, Role, Scenario

AT_S = 6.0


def draw_unsure(seed: int) -> Scenario:
    """The scenario of a seed."""
    dice = random.Random(f"unsure/{seed}")
    nodes, nth = dice.choice([1, 2, 3]), dice.choice([1, 2])
    disk_s = dice.choice([0.2, 0.5, 1.0])
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=dice.randint(1, nodes),
        nodes_max=nodes,
        workers=(1,),
        work_s=20.0,
    )
    loses = Fault(
        what="disk_loses_answers",
        node=HEAD if nth > 1 else 0,
        phase="claiming",
        nth=nth,
        at=round(dice.uniform(0, disk_s), 3),
        lasts_s=round(dice.uniform(0.1, 1.5), 3),
    )
    fails = [Fault(what="kill_worker", node=dice.randrange(nodes), at=AT_S)] if nth > 1 else []
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes,
        lease_s=dice.choice([3.0, 10.0]),
        join_timeout_s=60.0,
        disk_s=(disk_s,),
        faults=(*fails, loses),
    )
