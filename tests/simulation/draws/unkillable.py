"""Draws scenarios in which a worker survives its KILL, as one that waits for a dead file server in the kernel does."""

from __future__ import annotations

import random

from tests.simulation.scenario import HEAD, Fault, Role, Scenario

STOPS = ("exit_worker", "bus_worker", "ask_restart", "ask_drain", "ask_stop", "stop", "term", "term_all")
LOSSES = ("kill_agent", "power_off", "partition")  # of the head, or of another node


def draw_unkillable(seed: int) -> Scenario:
    """The scenario of a seed: workers are stopped for what another does, or killed because their head is lost."""
    dice = random.Random(f"unkillable/{seed}")
    nodes, at = dice.choice([2, 3, 3, 4]), dice.uniform(4.0, 12.0)
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=dice.randint(1, nodes - 1),
        nodes_max=nodes,
        workers=(dice.choice([1, 2]),),
        work_s=60.0,
        patience_s=dice.choice([0.0, 5.0, 30.0]),
    )
    survivor = dice.randrange(nodes)
    faults = [Fault(what="unkillable", node=survivor, at=round(at - 0.5, 3))]
    if dice.random() < 0.5:
        what = dice.choice(STOPS)
        others = [number for number in range(nodes) if number != survivor] if what == "ask_drain" else range(nodes)
        faults.append(Fault(what=what, node=dice.choice(others), at=round(at, 3)))
    else:
        node, what = dice.choice([HEAD, HEAD, survivor, dice.randrange(nodes)]), dice.choice(LOSSES)
        lasts_s = dice.choice([6.0, 12.0]) if what == "partition" else 0.0
        faults.append(Fault(what=what, node=node, side=(node,), at=round(at, 3), lasts_s=lasts_s))
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes,
        max_restarts=dice.choice([0, 3]),
        lease_s=3.0,
        join_timeout_s=30.0,
        is_requeued=dice.choice([False, None]),
        faults=tuple(faults),
    )
