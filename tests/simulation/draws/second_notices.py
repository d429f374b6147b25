"""Draws scenarios in which several notices are given while workers run: of ends that are sooner, later, not known."""

from __future__ import annotations

import random

from tests.simulation.scenario import Fault, Role, Scenario

UNKNOWN_S = -1.0
NEXT_S = 12.0  # between two, at most
LEFT_S = (8.0, 30.0, 30.5, 100.0, 600.0, UNKNOWN_S, UNKNOWN_S)  # before the workers will be stopped


def draw_second_notices(seed: int) -> Scenario:
    """The scenario of a seed."""
    dice = random.Random(f"second notices/{seed}")
    nodes = dice.choice([1, 2, 3])
    role = Role(
        name="trainer",
        restart=dice.choice(["restart_all", "restart_role"]),
        nodes_min=nodes,
        nodes_max=nodes,
        workers=dice.choice([(1,), (2,)]),
        work_s=40.0,
    )
    at, notices, are_unknown = round(dice.uniform(4, 7), 3), list[Fault](), dice.random() < 0.3
    for _ in range(dice.choice([2, 3, 3])):
        left_s = UNKNOWN_S if are_unknown else dice.choice(LEFT_S)
        if notices and notices[-1].lasts_s > NEXT_S and dice.random() < 0.4:  # of nearly the same end
            left_s = notices[-1].lasts_s - (at - notices[-1].at) + dice.uniform(-0.6, 0.6)
        notices.append(Fault(what="notice", at=round(at, 3), lasts_s=round(left_s, 3)))
        at += dice.choice([5.0, 7.0, NEXT_S])
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes,
        lease_s=dice.choice([3.0, 10.0]),
        delays_s=dice.choice([(0.001,), (0.001, 0.02)]),
        faults=tuple(notices),
    )
