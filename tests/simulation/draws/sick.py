"""Draws scenarios in which an unhealthy node is lost, too, and all that are left are needed when a worker fails."""

from __future__ import annotations

import random

from tests.simulation.scenario import HEAD, HEALTH, Fault, Role, Scenario

FOR_EVER_S = 1e6
LATER_S = 15.0  # then the loss is known


def draw_sick(seed: int) -> Scenario:
    """The scenario of a seed."""
    dice = random.Random(f"sick/{seed}")
    needed, at = dice.choice([1, 2, 3]), round(dice.uniform(5, 15), 3)
    role = Role(name="trainer", restart="restart_all", nodes_min=needed, nodes_max=needed, workers=(1,), work_s=60.0)
    sick = dice.randrange(1, needed + 1)
    lost = Fault(what=dice.choice(["kill_agent", "power_off"]), node=sick, at=at)
    fails = Fault(what="kill_worker", node=HEAD, at=round(at + LATER_S, 3))
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=needed + 1,
        lease_s=3.0,
        join_timeout_s=30.0,
        rejoin=dice.choice(["at_restart", "immediately"]),
        faults=(Fault(what=HEALTH, node=sick, lasts_s=FOR_EVER_S), lost, fails),
    )
