"""Draws scenarios in which people ask for saves of the states in memory, at any moment, whatever else happens."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation.draws.requeues import draw_requeues
from tests.simulation.draws.states import draw_states
from tests.simulation.scenario import Fault, Role, Scenario

WORKERS = ("kill_worker", "exit_worker", "break_store")


def draw_asked_saves(seed: int) -> Scenario:
    """The scenario of a seed: in half of them nothing else goes wrong but workers, in some the job starts twice."""
    dice = random.Random(f"asked saves/{seed}")
    drawn = draw_requeues if seed % 8 == 0 else draw_states
    scenario = _calm(seed, dice) if seed % 2 else drawn(seed)
    last = max((fault.at for fault in scenario.faults), default=0.0)
    at, faults = dice.uniform(2, 5.0 + last), list(scenario.faults)
    for _ in range(dice.choice([1, 2, 3, 5])):
        within_s = dice.choice([0.5, 5.0, 60.0])
        faults.append(Fault(what="ask_save", at=round(at, 3), lasts_s=within_s))
        at += dice.choice([0.001, 0.3, dice.uniform(0, 5), dice.uniform(0, 20)])
    return replace(
        scenario,
        keeps_every_s=dice.choice([0.05, 0.2, 1.0]),
        room=dice.choice([2, 3, 4, 4]) if scenario.copy_s is None else 4,
        write_s=dice.choice([0.0, 0.05, 1.0, 10.0]),
        faults=tuple(faults),
    )


def _calm(seed: int, dice: random.Random) -> Scenario:
    nodes = dice.choice([1, 2, 3, 4])
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=dice.randint(1, nodes),
        nodes_max=nodes,
        workers=(dice.choice([1, 2]),),
        work_s=dice.choice([20.0, 40.0]),
    )
    kinds = [dice.choice(WORKERS) for _ in range(dice.choice([0, 0, 1, 2]))]
    faults = [Fault(what=what, node=dice.randrange(nodes), at=round(dice.uniform(3, 20), 3)) for what in kinds]
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes,
        delays_s=dice.choice([(0.0,), (0.001,), (0.0, 0.001, 0.02)]),
        disk_s=dice.choice([(0.001,), (0.01, 0.05), (0.01, 0.05, 1.0)]),
        are_replicated=dice.random() < 0.3,
        faults=tuple(faults),
    )
