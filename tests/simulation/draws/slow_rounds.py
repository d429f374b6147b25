"""Draws scenarios of a new head that stands still as it gathers the others: they get a moment more to come."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation.scenario import Fault, Role, Scenario


def draw_slow_rounds(seed: int) -> Scenario:
    """The scenario of a seed."""
    dice = random.Random(f"slow rounds/{seed}")
    nodes, lease_s = dice.choice([2, 3, 4, 5]), dice.choice([3.0, 10.0])
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=dice.randint(1, nodes - 1),
        nodes_max=nodes,
        workers=(1,),
        work_s=20.0,
    )
    lost = Fault(what=dice.choice(["power_off", "kill_agent", "partition"]), node=0, side=(0,), lasts_s=300.0)
    lost = replace(lost, at=round(dice.uniform(3.0, 8.0), 3))
    sleeps = Fault(
        what="pause",
        node=1,  # the first to take the head's place
        phase="gathering",
        nth=2,
        at=dice.choice([0.0, 0.01, 0.1, round(dice.uniform(0, lease_s), 3)]),
        lasts_s=round(lease_s * dice.choice([0.2, 0.4, 0.7, 0.9, 1.2]), 3),
    )
    faults = [lost, sleeps]
    if nodes > 3 and dice.random() < 0.5:  # who had come goes as others are awaited
        at = round(dice.uniform(0, lease_s), 3)
        goes = Fault(what="kill_agent", node=2, phase="gathering", nth=2, at=at)
        faults = [lost, goes] if dice.random() < 0.5 else [lost, sleeps, goes]
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes,
        lease_s=lease_s,
        join_timeout_s=dice.choice([5.0, 15.0]),
        rejoin=dice.choice(["at_restart", "immediately"]),
        disk_s=dice.choice([(0.001,), (0.01, 0.05)]),
        faults=tuple(faults),
    )
