"""Draws scenarios in which a person drains a node, and the head is lost that has heard of it, or has not yet.

In some no head is lost: a person drains a node of one role while another role restarts alone.
"""

from __future__ import annotations

import random

from tests.simulation.scenario import HEAD, Fault, Role, Scenario

LOST = ("kill_agent", "kill_agent", "power_off")


def draw_drained(seed: int) -> Scenario:
    """The scenario of a seed: enough nodes are left without both."""
    if seed % 8 == 5:
        return _beside_a_restart(seed)
    dice = random.Random(f"drained/{seed}")
    nodes, spares = dice.choice([3, 4]), dice.choice([0, 1])
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=dice.randint(1, nodes - 2),
        nodes_max=nodes,
        workers=(dice.choice([1, 2]),),
        work_s=40.0,
    )
    at = dice.uniform(4.0, 12.0)
    drain = Fault(what="ask_drain", node=dice.randrange(1, nodes), at=round(at, 3))
    lost = Fault(what=dice.choice(LOST), node=HEAD, at=round(at + dice.choice([0.1, dice.uniform(0.5, 8.0)]), 3))
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes + spares,
        lease_s=3.0,
        join_timeout_s=30.0,
        disk_s=dice.choice([(0.001,), (0.01, 0.05)]),
        faults=(drain, lost),
    )


def _beside_a_restart(seed: int) -> Scenario:
    """A worker of one role fails; until its role has stopped and paused, a node of the other one is drained."""
    dice = random.Random(f"drained/{seed}")
    roles = tuple(
        Role(name=name, restart="restart_role", nodes_min=1, nodes_max=2, workers=(1,), work_s=30.0)
        for name in ("actor", "learner")
    )
    at = dice.uniform(4.0, 10.0)
    fails = Fault(what="exit_worker", node=dice.choice([0, 1]), at=round(at, 3))
    drain = Fault(what="ask_drain", node=dice.choice([2, 3]), at=round(at + dice.uniform(0.05, 2.0), 3))
    return Scenario(
        seed=seed,
        roles=roles,
        nodes=4,
        lease_s=3.0,
        join_timeout_s=30.0,
        save_s=dice.choice([0.0, 3.0]),
        backoff_first_s=dice.choice([0.0, 3.0]),
        disk_s=dice.choice([(0.001,), (0.01, 0.05)]),
        faults=(fails, drain),
    )
