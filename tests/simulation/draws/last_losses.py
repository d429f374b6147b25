"""Draws scenarios in which nodes are lost while the workers stop for the end of the run, and take their time."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation.scenario import Fault, Role, Scenario

WHATS = ("power_off", "power_off", "pause", "partition", "kill_agent")
ENDS = ("stop", "fail_together", "time_out", "time_out")
LONG_S = 30.0  # that workers go on after a TERM


def draw_last_losses(seed: int) -> Scenario:
    """The scenario of a seed: a person or a failure ends the run, and some nodes are lost together during the stop."""
    dice = random.Random(f"last losses/{seed}")
    nodes, lease_s = dice.choice([3, 4, 5]), 3.0
    lost = tuple(sorted(dice.sample(range(1, nodes), dice.choice([1, 2, min(3, nodes - 1)]))))
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=dice.choice([1, nodes]),
        nodes_max=nodes,
        workers=(1,),
        work_s=40.0,
        patience_s=LONG_S,
    )
    ends, at = dice.choice(ENDS), round(dice.uniform(4, 8), 3)
    others = [number for number in range(nodes) if number not in lost]
    end = Fault(what=ends, node=dice.choice([*others, *others, lost[0]]), at=at, way="one_hangs", lasts_s=0.8)
    what = dice.choice(WHATS)
    during = Fault(what=what, at=round(at + dice.uniform(-2.0, 1.5), 3), lasts_s=dice.choice([4.0, 20.0]))
    losses = [replace(during, side=lost)] if what == "partition" else [replace(during, node=number) for number in lost]
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes,
        max_restarts=0,
        lease_s=lease_s,
        faults=(end, *losses),
    )
