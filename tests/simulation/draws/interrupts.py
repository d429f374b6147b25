"""Draws scenarios of runs without a scheduler: a person asks for the end by Ctrl-C, once, again, or in two ways."""

from __future__ import annotations

import random

from tests.simulation.scenario import GRACE_S, Fault, Role, Scenario

SAME_S, AGAIN_S = (0.1, 0.5), (1.4, 6.0)  # after the first Ctrl-C: it has come twice, or a person asks again


def draw_interrupts(seed: int) -> Scenario:
    """The scenario of a seed."""
    dice = random.Random(f"interrupts/{seed}")
    nodes, at = dice.choice([1, 1, 2, 3]), round(dice.uniform(3, 9), 3)
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=nodes,
        nodes_max=nodes,
        workers=(dice.choice([1, 2, 3]),),
        work_s=2000.0,
        patience_s=dice.choice([0.0, 9.0, 18.0, 18.0, 2 * GRACE_S]),
    )
    first = Fault(what=dice.choice(["stop", "interrupt", "interrupt"]), at=at)
    after_s = dice.uniform(*dice.choice([SAME_S, AGAIN_S, AGAIN_S]))
    asks_again = dice.random() < 0.8
    again = Fault(what="interrupt", at=round(at + after_s, 3))
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes,
        lease_s=dice.choice([3.0, 10.0]),
        is_local=True,
        faults=(first, again) if asks_again else (first,),
    )
