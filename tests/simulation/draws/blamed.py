"""Draws scenarios in which a node dies in two starts of the job, and more starts follow: it is blamed for a while."""

from __future__ import annotations

import random

from tests.simulation.scenario import Fault, Role, Scenario

STARTS = 6  # of the job
LASTS_S = 14.0  # each of them, but for the last one
DIES_AT_S = 9.0  # in a start, when an attempt is at work
LOSSES = ((1, 2), (1, 3), (2, 3), (1, 4), (1, 5))  # the starts in which it dies


def draw_blamed(seed: int) -> Scenario:
    """The scenario of a seed."""
    dice = random.Random(f"blamed/{seed}")
    members, spares = dice.choice([2, 3]), dice.choice([0, 1])
    role = Role(name="trainer", restart="restart_all", nodes_min=1, nodes_max=members, workers=(1,), work_s=25.0)
    node, faults = dice.randrange(1, members), list[Fault]()
    for start in range(1, STARTS + 1):
        begins = LASTS_S * (start - 1)
        if start > 1:
            faults.append(Fault(what="requeue", at=begins))
        if start in LOSSES[seed % len(LOSSES)]:
            faults.append(Fault(what="kill_agent", node=node, at=begins + DIES_AT_S))
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=members + spares,
        no_progress_limit=9,
        progress="moves",
        lease_s=3.0,
        faults=tuple(faults),
    )
