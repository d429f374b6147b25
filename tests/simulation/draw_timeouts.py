"""Draws scenarios in which ranks wait for one that hangs, and time out, each a little after the other."""

from __future__ import annotations

import random

from tests.simulation.scenario import Fault, Role, Scenario


def draw_timeouts(seed: int) -> Scenario:
    """The scenario of a seed: one moment in which ranks time out, in most of them because one of them hangs."""
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
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes,
        lease_s=dice.choice([3.0, 10.0]),
        faults=(
            Fault(
                what="time_out",
                at=round(dice.uniform(4, 9), 3),
                node=dice.randrange(nodes),  # on which one hangs
                way=dice.choice(["one_hangs", "one_hangs", "nobody_hangs", "one_fails"]),
                lasts_s=dice.choice([0.1, 0.8, 1.6]),  # between the first and the last one that times out
            ),
        ),
    )
