"""Draws scenarios of machines that fail in odd ways, in larger worlds.

Agents are frozen in the middle of a turn, guards are killed, a node's kernel remembers for half a minute that a name
was absent, racks are lost or cut off.
"""

from __future__ import annotations

import random
from dataclasses import replace

from hpc_elastic.membership.timing import AGENT, TORCHRUN
from tests.simulation.scenario import HEAD, SECOND, Fault, Role, Scenario

KINDS = ("freeze", "freeze", "kill_guard", "kill_guard", "pause", "partition", "one_way", "rack", "kill_agent")
POINTS = 60  # of the code, so that a freeze comes within a few beats


def draw_machines(seed: int) -> Scenario:
    """The scenario of a seed."""
    dice = random.Random(f"machines/{seed}")
    nodes = dice.choice([2, 3, 4, 6, 6, 8, 10, 12, 16])
    most = nodes - (dice.choice([0, 0, 1, 2]) if nodes > 3 else 0)
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=dice.randint(1, max(1, most // dice.choice([1, 2, 2]))),
        nodes_max=most,
        workers=(1,),
        work_s=dice.choice([20.0, 60.0, 120.0]),
        patience_s=dice.choice([0.0, 0.0, 30.0]),
    )
    stale_s = dice.choice([0.0, 30.0])
    disks = [(0.001,), (0.01, 0.05), (0.001, 0.01, 0.5)]
    slow_disks = [(0.5, 2.0), (0.01, 4.0)]  # so that a name is looked for just before it is there
    scenario = Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes,
        lease_s=dice.choice([3.0, 10.0, 10.0, 30.0]),
        join_timeout_s=dice.choice([30.0, 60.0]),
        delays_s=dice.choice([(0.0,), (0.001,), (0.0, 0.001, 0.02)]),
        disk_s=dice.choice(slow_disks if stale_s else disks),
        spawn_s=dice.choice([(0.02,), (0.02, 3.0)]),
        rejoin=dice.choice(["at_restart", "immediately"]),
        stale_s=stale_s,
        profile=dice.choice([AGENT, AGENT, TORCHRUN]),
    )
    faults: list[Fault] = []
    when = _when(dice, role.work_s)
    for _ in range(dice.choice([1, 2, 2, 3, 4])):
        faults += _draw_faults(dice, scenario, when)
        later = dice.choice([0.0, 0.01, 0.3, 1.0, dice.uniform(0, 3 * scenario.lease_s)])
        when = replace(when, at=when.at + later) if dice.random() < 0.7 else _when(dice, role.work_s)
    return replace(scenario, faults=tuple(faults))


def _when(dice: random.Random, work_s: float) -> Fault:
    if dice.random() < 0.6:
        return Fault(what="", at=round(dice.uniform(2, 3 + 1.2 * work_s), 3))
    phase = dice.choice(["gathering", "claiming", "running", "running", "closing", "stopping", "pausing"])
    return Fault(what="", phase=phase, nth=dice.choice([1, 1, 2]), at=dice.choice([0.0, 0.001, dice.uniform(0, 3)]))


def _draw_faults(dice: random.Random, scenario: Scenario, when: Fault) -> list[Fault]:
    what, node = dice.choice(KINDS), dice.choice([HEAD, HEAD, SECOND, dice.randrange(scenario.nodes)])
    lasts_s = round(scenario.lease_s * dice.choice([0.3, 0.6, 0.8, 1.0, 1.2, 1.7, 2.2, 3.5, 6.0]), 3)
    if what in ("freeze", "pause"):
        return [replace(when, what=what, node=node, lasts_s=lasts_s, point=dice.randrange(POINTS))]
    if what in ("kill_guard", "kill_agent"):
        return [replace(when, what=what, node=node)]
    first, count = dice.choice([0, dice.randrange(scenario.nodes)]), dice.randint(1, max(1, scenario.nodes // 2))
    rack = tuple(sorted({(first + number) % scenario.nodes for number in range(count)}))
    if what == "rack":
        how = dice.choice(["power_off", "kill_agent", "pause"])
        lasts_s = lasts_s if how == "pause" else 0.0
        return [replace(when, what=how, node=each, lasts_s=lasts_s, at=when.at + dice.uniform(0, 1)) for each in rack]
    way = dice.choice(["in", "out"]) if what == "one_way" else "both"
    side = dice.choice([rack, (HEAD,), (SECOND,)])
    return [replace(when, what=what, side=side, way=way, lasts_s=dice.choice([lasts_s, 10_000.0]))]
