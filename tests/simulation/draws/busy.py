"""Draws scenarios in which each agent has much to write that is not urgent, when a worker fails."""

from __future__ import annotations

import random

from tests.simulation.scenario import Fault, Role, Scenario

AT_S = 8.0


def draw_busy(seed: int) -> Scenario:
    """The scenario of a seed."""
    dice = random.Random(f"busy/{seed}")
    nodes = dice.choice([1, 2, 3])
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=nodes,
        nodes_max=nodes,
        workers=dice.choice([(1,), (2,)]),
        work_s=30.0,
    )
    busy = tuple(Fault(what="busy_disk", node=node, at=AT_S, lasts_s=20.0) for node in range(nodes))
    fails_at = round(AT_S + dice.uniform(0.1, 5.0), 3)
    what = dice.choice(["kill_worker", "exit_worker"])
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes,
        lease_s=dice.choice([3.0, 10.0]),
        progress=dice.choice(["unknown", "moves"]),
        is_busy=True,
        faults=(*busy, Fault(what=what, node=dice.randrange(nodes), at=fails_at)),
    )
