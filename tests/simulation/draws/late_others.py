"""Draws scenarios in which nodes come late, of another version or not fit, to a run that has begun without them."""

from __future__ import annotations

import random

from tests.simulation.scenario import HEAD, Fault, Role, Scenario

WHATS = ("other_version", "other_version", "unfit")


def draw_late_others(seed: int) -> Scenario:
    """The scenario of a seed: one or two such nodes, and something that has them ask again, or the others gather."""
    dice = random.Random(f"late others/{seed}")
    members, join_timeout_s = dice.choice([2, 3, 4]), dice.choice([5.0, 15.0])
    late = range(members, members + dice.choice([1, 1, 2]))
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=dice.randint(1, members),
        nodes_max=len(late) + members if dice.random() < 0.6 else members,
        workers=(1,),
        work_s=30.0,
    )
    faults = []
    for node in late:
        faults.append(Fault(what=dice.choice(WHATS), node=node))
        lasts_s = dice.choice([0.9, 1.1, 1.6]) * join_timeout_s + dice.uniform(0, 4)
        faults.append(Fault(what="starts_late", node=node, lasts_s=round(lasts_s, 3)))
    if dice.random() < 0.6:
        what = dice.choice(["exit_worker", "exit_worker", "kill_agent", "power_off"])
        node = HEAD if what != "exit_worker" else dice.randrange(members)
        faults.append(Fault(what=what, node=node, at=round(join_timeout_s * dice.uniform(1.0, 2.0) + 4.0, 3)))
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=members + len(late),
        lease_s=dice.choice([3.0, 10.0]),
        join_timeout_s=join_timeout_s,
        rejoin=dice.choice(["at_restart", "immediately"]),
        disk_s=dice.choice([(0.001,), (0.01, 0.05)]),
        faults=tuple(faults),
    )
