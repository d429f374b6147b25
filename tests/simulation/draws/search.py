"""Draws scenarios in which one node cannot reach the first head, for a while or for ever, or has another secret."""

from __future__ import annotations

import random

from tests.simulation.scenario import Fault, Role, Scenario

SHORT = 8  # of so many seeds one


def draw_search(seed: int) -> Scenario:
    """The scenario of a seed."""
    dice = random.Random(f"search/{seed}")
    nodes, retries = dice.choice([2, 3, 4]), dice.choice([0, 1, 1, 2])
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=1,
        nodes_max=nodes,
        workers=(1,),
        work_s=5.0,
    )
    lasts_s = dice.choice([3.0, 7.0, 10_000.0, 10_000.0] + [20.0] * (retries > 0))
    timeout_s = 300.0
    if seed % SHORT == 3:  # the way never opens, and there is no time for all tries
        timeout_s, retries = dice.choice([(15.0, 1), (33.0, 2)])
        lasts_s = 10_000.0
    side = dice.randrange(1, nodes)
    what = "partition"
    if seed % SHORT == 5:  # it is answered, and does not understand
        what, lasts_s = "wrong_secret", 10_000.0
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes,
        lease_s=dice.choice([3.0, 10.0]),
        join_timeout_s=timeout_s,
        join_retries=retries,
        is_search=True,
        faults=(Fault(what=what, node=side, side=(side,), lasts_s=lasts_s),),
    )
