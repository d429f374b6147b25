"""Draws scenarios in which an agent that has lost its head, and searches for another one, gets a TERM."""

from __future__ import annotations

import random

from tests.simulation.scenario import HEAD, SECOND, Fault, Role, Scenario

LOST = ("kill_agent", "power_off", "power_off", "partition")


def draw_called_off(seed: int) -> Scenario:
    """The scenario of a seed."""
    dice = random.Random(f"called off/{seed}")
    nodes, lease_s = dice.choice([2, 3, 3, 4]), dice.choice([3.0, 9.0])
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=dice.randint(1, nodes - 1),
        nodes_max=nodes,
        workers=(dice.choice([1, 2]),),
        work_s=40.0,
        patience_s=dice.choice([0.0, 5.0]),
    )
    what, at = dice.choice(LOST), round(dice.uniform(4.0, 12.0), 3)
    lost = Fault(what=what, node=HEAD, side=(HEAD,), at=at, lasts_s=8 * lease_s if what == "partition" else 0.0)
    # A dead head is lost at once, and a silent one after two thirds of a lease.
    after_s = dice.uniform(0.0, 0.5) if what == "kill_agent" else lease_s * dice.uniform(0.6, 1.4)
    term = Fault(what="term", node=dice.choice([1, nodes - 1, SECOND]), at=round(at + after_s, 3))
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes,
        lease_s=lease_s,
        join_timeout_s=30.0,
        disk_s=dice.choice([(0.001,), (0.01, 0.05)]),
        faults=(lost, term),
    )
