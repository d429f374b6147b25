"""Draws scenarios in which the first head stands still as the others ask to join it."""

from __future__ import annotations

import random

from tests.simulation.scenario import Fault, Role, Scenario


def draw_slow_heads(seed: int) -> Scenario:
    """The scenario of a seed: it goes on before anybody has to give up."""
    dice = random.Random(f"slow heads/{seed}")
    nodes = dice.choice([2, 3, 4, 5])
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=dice.randint(1, nodes),
        nodes_max=nodes,
        workers=(1,),
        work_s=10.0,
    )
    stands = Fault(
        what="pause", node=0, at=round(dice.uniform(0.1, 2.2), 4), lasts_s=dice.choice([3.0, 7.0, 12.0, 18.0])
    )
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes,
        lease_s=dice.choice([3.0, 10.0]),
        join_timeout_s=60.0,
        delays_s=dice.choice([(0.001,), (0.02, 0.2)]),
        faults=(stands,),
    )
