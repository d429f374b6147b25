"""Draws scenarios in which heads are lost before they have opened the first attempt: others claim the allocation."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation.scenario import HEAD, Fault, Role, Scenario

LOSSES = ("kill_agent", "kill_agent", "power_off", "partition", "pause")


def draw_unopened(seed: int) -> Scenario:
    """The scenario of a seed: one node never comes, for which each head waits, and so opens no attempt."""
    dice = random.Random(f"unopened/{seed}")
    nodes, at, lease_s = dice.choice([3, 4, 4, 5]), dice.uniform(3.0, 6.0), dice.choice([3.0, 3.0, 10.0])
    faults = [Fault(what="never_starts", node=nodes - 1)]
    for _ in range(dice.choice([1, 1, 2])):
        what = dice.choice(LOSSES)
        lasts_s = lease_s * dice.choice([0.8, 1.5, 4.0]) if what in ("partition", "pause") else 0.0
        faults.append(Fault(what=what, node=HEAD, side=(HEAD,), at=round(at, 3), lasts_s=lasts_s))
        at += dice.choice([1.0, 4.0, 2 * lease_s])
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=dice.choice([1, nodes - 2]),
        nodes_max=nodes,
        workers=(1,),
        work_s=5.0,
    )
    scenario = Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes,
        lease_s=lease_s,
        join_timeout_s=dice.choice([20.0, 40.0]),
        disk_s=dice.choice([(0.01,), (0.01,), (0.01, 0.05), (0.5, 2.0)]),
        faults=tuple(faults),
    )
    return _given_up_together(scenario) if seed % 8 == 6 else scenario


def _given_up_together(scenario: Scenario) -> Scenario:
    """Of agents that give the dead head up in one second, on a slow file server, one claims, and the others join it."""
    nodes = max(4, scenario.nodes)
    never, first = (
        replace(scenario.faults[0], node=nodes - 1),
        replace(scenario.faults[1], what="kill_agent", lasts_s=0),
    )
    role = replace(scenario.roles[0], nodes_min=nodes - 2, nodes_max=nodes)
    return replace(scenario, nodes=nodes, roles=(role,), lease_s=3.0, disk_s=(0.5, 2.0), faults=(never, first))
