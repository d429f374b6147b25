"""Draws scenarios in which a loss comes just as workers are stopped for something else, and have their time."""

from __future__ import annotations

import random

from tests.simulation.scenario import HEAD, Fault, Role, Scenario

STOPS = ("term", "term", "term_all", "stop", "ask_stop", "ask_restart", "exit_worker", "bus_worker")
# A reset that somebody makes up is a death to both sides: workers that have their time outlive it (decision 0014).
LOSSES = ("kill_agent", "kill_agent", "kill_agent", "power_off")


def draw_cut_stops(seed: int) -> Scenario:
    """The scenario of a seed."""
    dice = random.Random(f"cut stops/{seed}")
    nodes, at = dice.choice([2, 3, 3, 4]), dice.uniform(4.0, 9.0)
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=dice.randint(1, nodes - 1),
        nodes_max=nodes,
        workers=(dice.choice([1, 2]),),
        work_s=25.0,
        patience_s=dice.choice([0.0, 5.0, 15.0]),
    )
    stops = Fault(what=dice.choice(STOPS), node=dice.choice([HEAD, dice.randrange(nodes)]), at=round(at, 3))
    late_s = 1.0 if stops.what in ("stop", "ask_stop", "ask_restart") else 0.0  # the head looks each second
    lost_at = round(at + dice.uniform(0.02, 1.1 + late_s), 3)
    lost = Fault(what=dice.choice(LOSSES), node=dice.choice([HEAD, dice.randrange(nodes)]), at=lost_at)
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes,
        lease_s=3.0,
        join_timeout_s=30.0,
        save_s=dice.choice([0.0, 0.0, 4.0]),
        faults=(stops, lost),
    )
