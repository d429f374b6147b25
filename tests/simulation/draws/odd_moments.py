"""Draws scenarios in which people ask for something just as the run does something else, or for what there is not."""

from __future__ import annotations

import random

from tests.simulation.scenario import Fault, Role, Scenario

MOMENTS = (("gathering", 2), ("claiming", 1), ("claiming", 2), ("running", 1), ("running", 2))
ENDS = (("stopping", 1), ("stopping", 1), ("pausing", 1), ("pausing", 1), ("closing", 1))
ASKED = ("ask_drain", "ask_drain", "ask_restart", "ask_stop", "notice", "stop")
STRANGER = 77  # the number of a node that the job has not


def draw_odd_moments(seed: int) -> Scenario:
    """The scenario of a seed: workers fail until no restart is left, and two things are asked for meanwhile."""
    dice = random.Random(f"odd moments/{seed}")
    nodes, at = dice.choice([2, 3, 4]), dice.uniform(3.0, 8.0)
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=dice.randint(1, nodes - 1),
        nodes_max=nodes,
        workers=(dice.choice([1, 2]),),
        work_s=40.0,
        patience_s=dice.choice([0.0, 4.0, 15.0]),
    )
    faults = [
        Fault(what="exit_worker", node=dice.randrange(nodes), at=round(at + dice.uniform(0, 20) * each, 3))
        for each in range(dice.choice([1, 2]))
    ]
    drained = dice.choice([STRANGER, *range(1, nodes)])  # one node at most, so that enough others are there
    for _ in range(dice.choice([1, 2, 2, 3])):
        what, (phase, nth) = dice.choice(ASKED), dice.choice(MOMENTS + ENDS)
        lasts_s = {"ask_stop": dice.choice([0.0, 2.0, 10.0]), "notice": dice.choice([5.0, 20.0])}.get(what, 0.0)
        faults.append(
            Fault(
                what=what,
                node=drained if what == "ask_drain" else 0,
                phase=phase,
                nth=nth,
                at=round(dice.choice([0.0, 0.0, dice.uniform(0, 2)]), 3),
                lasts_s=lasts_s,
            )
        )
    if dice.random() < 0.3:
        faults.append(
            Fault(what=dice.choice(["kill_agent", "power_off"]), node=dice.randrange(1, nodes), at=round(at, 3))
        )
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes + dice.choice([0, 1]),
        max_restarts=dice.choice([0, 1, 3]),
        backoff_first_s=dice.choice([0.0, 6.0]),
        lease_s=3.0,
        join_timeout_s=30.0,
        disk_s=dice.choice([(0.01,), (0.05, 0.3)]),
        faults=tuple(faults),
    )
