"""Draws scenarios in which ranks overwrite what the head is about to have written, on some nodes and not on others."""

from __future__ import annotations

import random

from tests.simulation.scenario import HEAD, Fault, Role, Scenario

REFUSED, REFUSED_UNTIL_ANOTHER = 7, 13  # of 20 seeds each: no answer can be written for longer than it is tried
SOME = 17  # of 20 seeds: some ranks have no state yet
SELDOM_S = 15.0
SLOW = ((0.0, 0.2), (0.001, 0.2), (0.0, 0.02, 0.3), (0.01, 0.5))  # of messages, against saves every 0.05 s


def draw_overwritten(seed: int) -> Scenario:
    """The scenario of a seed."""
    if seed % 20 in (REFUSED, REFUSED_UNTIL_ANOTHER):
        return _draw_refused(seed)
    dice = random.Random(f"overwritten/{seed}")
    nodes, at = dice.choice([2, 2, 3, 4]), dice.uniform(4.0, 8.0)
    names = ("trainer",) if nodes == 2 or dice.random() < 0.7 else ("trainer", "reader")
    roles = tuple(
        Role(
            name=name,
            restart="restart_role" if len(names) > 1 else "restart_all",
            nodes_min=size,
            nodes_max=size,
            workers=(dice.choice([1, 2]),),
            work_s=20.0,
        )
        for name, size in zip(names, (nodes - len(names) + 1, 1), strict=False)
    )
    faults = []
    for _ in range(dice.choice([1, 2, 4])):
        faults.append(Fault(what="ask_save", at=round(at, 3), lasts_s=dice.choice([0.3, 2.0, 5.0, 60.0])))
        at += dice.choice([0.01, 0.5, dice.uniform(1, 6)])
    if dice.random() < 0.3:
        faults.append(Fault(what=dice.choice(["exit_worker", "kill_agent"]), node=HEAD, at=round(at, 3)))
    return Scenario(
        seed=seed,
        roles=roles,
        nodes=nodes,
        lease_s=10.0,
        delays_s=dice.choice(SLOW),
        disk_s=dice.choice([(0.001,), (0.01, 0.05)]),
        keeps_every_s=SELDOM_S if seed % 20 == SOME else dice.choice([0.03, 0.05, 0.1, 0.2]),
        are_replicated=dice.random() < 0.2,
        room=dice.choice([2, 2, 3]),
        write_s=dice.choice([0.0, 0.05, 0.5, 3.0]),
        faults=tuple(faults),
    )


def _draw_refused(seed: int) -> Scenario:
    """The head cannot write what came of a save; in some of these it is cut off then, and another one takes over."""
    dice = random.Random(f"overwritten/refused/{seed}")
    is_cut = seed % 20 == REFUSED_UNTIL_ANOTHER
    role = Role(name="trainer", restart="restart_all", nodes_min=1, nodes_max=2, workers=(1,), work_s=150.0)
    at = round(dice.uniform(5.0, 8.0), 3)
    faults = [
        Fault(what="ask_save", at=at, lasts_s=60.0),
        Fault(what="disk_refuses", node=HEAD, at=at + 2.0, lasts_s=dice.choice([20.0, 50.0]) if is_cut else 100.0),
    ]
    if is_cut:
        faults.append(Fault(what="partition", side=(HEAD,), at=at + 4.0, lasts_s=30.0))
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=2,
        lease_s=10.0,
        disk_s=(0.001,),
        keeps_every_s=1.0,
        write_s=dice.choice([1.5, 3.0]),
        faults=tuple(faults),
    )
