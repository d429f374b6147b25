"""Draws scenarios in which a person goes on with a run in another job, where the one before is over, lives, or may."""

from __future__ import annotations

import random

from tests.simulation.scenario import Fault, Role, Scenario

THEMES = ("over", "over", "silent", "lives", "silent for long", "twice")


def draw_resumed(seed: int) -> Scenario:
    """The scenario of a seed."""
    dice = random.Random(f"resumed/{seed}")
    theme, nodes, at = THEMES[seed % len(THEMES)], dice.choice([1, 2, 3]), round(dice.uniform(4, 9), 3)
    faults = [Fault(what="requeue", at=at, side=tuple(range(nodes)) if theme == "lives" else ())]
    if theme.startswith("silent"):
        lasts_s = dice.choice([2.5, 6.0, 20.0]) if theme == "silent" else 90.0
        faults.append(Fault(what="scheduler_silent", at=at, lasts_s=lasts_s))
    elif theme == "twice":
        faults += [Fault(what="requeue", at=round(at + dice.choice([0.5, 3.0, 8.0]), 3))]
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=dice.randint(1, nodes),
        nodes_max=nodes,
        workers=(1,),
        work_s=20.0,
    )
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes,
        lease_s=dice.choice([3.0, 10.0]),
        disk_s=dice.choice([(0.001,), (0.01, 0.05)]),
        is_resumed=True,
        faults=tuple(faults),
    )
