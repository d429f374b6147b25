"""Draws scenarios in which ranks are wrappers whose programs have failed, and one of them passes that on."""

from __future__ import annotations

import random

from tests.simulation.scenario import Fault, Role, Scenario

LATER_S = 15.0  # then the next attempt is at work
STOPPED = 5  # of eight seeds: a person stops the run before any wrapper has ended


def draw_wrapped(seed: int) -> Scenario:
    """The scenario of a seed: one or two moments in which programs fail, and their wrappers go on for a while."""
    dice = random.Random(f"wrapped/{seed}")
    nodes, workers = dice.choice([(1, (2,)), (1, (3,)), (2, (1,)), (2, (2,)), (3, (1,)), (3, (2, 1))])
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=nodes,
        nodes_max=nodes,
        workers=workers,
        work_s=30.0,
        patience_s=dice.choice([0.0, 0.0, 2.0]),
    )
    moments = [round(dice.uniform(4, 9), 3)]
    if dice.random() < 0.4:
        moments.append(round(moments[0] + LATER_S, 3))
    faults = tuple(Fault(what="fail_inside", at=at, lasts_s=dice.choice([0.0, 0.1, 1.0])) for at in moments)
    if seed % 8 == STOPPED:
        at = round(moments[0] + 0.5, 3)
        faults = Fault(what="fail_inside", at=moments[0], lasts_s=60.0), Fault(what="stop", at=at)
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes,
        max_restarts=dice.choice([0, 1, 3]),
        no_progress_limit=9,
        lease_s=dice.choice([3.0, 10.0]),
        faults=faults,
    )
