"""Draws scenarios in which the scheduler ends the allocation with a TERM, and starts the job again."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Literal

from tests.simulation.draws.states import draw_states
from tests.simulation.scenario import HEAD, Fault, Role, Scenario

BEFORE = ("kill_worker", "kill_worker", "kill_agent", "exit_worker", "partition")
AFTER = ("kill_worker", "kill_worker", "kill_agent", "exit_worker")


def draw_requeues(seed: int) -> Scenario:
    """The scenario of a seed: ranks that save, one end by the scheduler, and now and then something else around it."""
    dice = random.Random(f"requeues/{seed}")
    nodes, at = dice.choice([1, 2, 3, 4]), dice.uniform(3, 20)
    restart: Literal["restart_all", "restart_role"] = dice.choice(["restart_all", "restart_all", "restart_role"])
    role = Role(
        name="trainer",
        restart=restart,
        nodes_min=dice.choice([1, nodes]),
        nodes_max=nodes,
        workers=(dice.choice([1, 2]),),
        work_s=dice.choice([20.0, 60.0]),
    )
    faults = [Fault(what="term_all", at=at), Fault(what="requeue", side=(), at=at + dice.choice([0.3, 8.0, 8.0, 40.0]))]
    for kinds, low, high in ((BEFORE, -3.0, 0.5), (AFTER, 0.0, 20.0)):
        if dice.random() < 0.5:
            begin = at if low < 0 else faults[1].at + 1.0
            when = begin + dice.uniform(low, high)
            faults.append(Fault(what=dice.choice(kinds), node=dice.choice([HEAD, 0, nodes - 1]), at=when, lasts_s=8.0))
    return replace(
        draw_states(seed),
        roles=(role,),
        nodes=nodes,
        lease_s=dice.choice([3.0, 10.0]),
        max_restarts=3,
        is_requeued=True,
        faults=tuple(faults),
    )
