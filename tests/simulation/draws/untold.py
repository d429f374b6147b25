"""Draws scenarios in which a head is lost just as it has opened an attempt, of which its members have not heard yet."""

from __future__ import annotations

import random

from tests.simulation.scenario import HEAD, Fault, Role, Scenario

FIRST = 2  # of three seeds: before anybody else was head
LOSSES = ("partition", "partition", "partition", "power_off", "pause", "kill_agent")
FIRST_LOSSES = ("kill_agent", "kill_agent", "power_off", "kill_worker")


def draw_untold(seed: int) -> Scenario:
    """The scenario of a seed: an attempt ends, the next one is opened, mostly by another head, and that is lost."""
    if seed % 3 == FIRST:
        return _draw_first(seed)
    dice = random.Random(f"untold/{seed}")
    nodes, lease_s, delay_s = dice.choice([2, 3, 3, 4]), dice.choice([3.0, 10.0]), dice.choice([0.001, 0.02])
    what = dice.choice(LOSSES)
    lost = Fault(
        what=what,
        node=HEAD,
        side=(HEAD,),
        phase="running",
        nth=2,
        at=dice.choice([0.0, 0.0, delay_s / 2, delay_s * 1.5]),
        lasts_s=lease_s * dice.choice([0.8, 2.0, 4.0]) if what in ("partition", "pause") else 0.0,
    )
    first = Fault(what=dice.choice(FIRST_LOSSES), node=HEAD, at=round(dice.uniform(3.0, 6.0), 3))
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=1,
        nodes_max=nodes,
        workers=(1,),
        work_s=40.0,
    )
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes,
        lease_s=lease_s,
        delays_s=(delay_s,),
        faults=(first, lost),
    )


def _draw_first(seed: int) -> Scenario:
    """The first head is lost as it opens the first attempt: who joined last has had no answer, and no head ever.

    On a slow network that answer is on its way when the claim is on disk.
    """
    dice = random.Random(f"untold/first/{seed}")
    nodes, lease_s, delay_s = dice.choice([2, 3, 4]), dice.choice([3.0, 3.0, 10.0]), dice.choice([0.05, 0.2])
    what = dice.choice(["power_off", "power_off", "partition", "partition", "kill_agent"])
    lost = Fault(
        what=what,
        node=HEAD,
        side=(HEAD,),
        phase="running",
        at=dice.choice([0.0, 0.0, delay_s / 4]),
        lasts_s=lease_s * dice.choice([0.8, 2.0, 4.0]) if what == "partition" else 0.0,
    )
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=dice.choice([1, 1, nodes - 1]),
        nodes_max=nodes,
        workers=(1,),
        work_s=40.0,
    )
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes,
        lease_s=lease_s,
        join_timeout_s=dice.choice([20.0, 60.0]),
        delays_s=(delay_s,),
        disk_s=(0.01,),
        faults=(lost,),
    )
