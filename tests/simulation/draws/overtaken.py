"""Draws scenarios in which a head is cut off or stands still, and has no disk, while it ends a run: others go on."""

from __future__ import annotations

import random

from tests.simulation.scenario import HEAD, Fault, Role, Scenario

PHASES = ("closing", "closing", "stopping")


def draw_overtaken(seed: int) -> Scenario:
    """The scenario of a seed: a failure ends the run, and nobody but the head has heard of it."""
    dice = random.Random(f"overtaken/{seed}")
    nodes, lease_s = dice.choice([3, 3, 4]), 3.0
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=dice.choice([1, 2]),
        nodes_max=nodes,
        workers=(dice.choice([1, 2]),),
        work_s=40.0,
        patience_s=dice.choice([0.0, 2.0]),
    )
    fails = Fault(what="exit_worker", node=0, at=round(dice.uniform(4, 8), 3))
    phase, lasts_s = dice.choice(PHASES), round(dice.uniform(3.0, 6.0) * lease_s, 3)
    disk = dice.choice(["disk_holds", "disk_holds", "disk_refuses"])
    cut = Fault(
        what=dice.choice(["partition", "partition", "pause"]), node=HEAD, side=(HEAD,), phase=phase, lasts_s=lasts_s
    )
    holds = Fault(what=disk, node=HEAD, phase=phase, lasts_s=round(lasts_s * dice.uniform(0.9, 1.3), 3))
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes,
        max_restarts=0,
        lease_s=lease_s,
        join_timeout_s=60.0,
        disk_s=(dice.choice([0.01, 0.05]),),
        faults=(fails, holds, cut),
    )
