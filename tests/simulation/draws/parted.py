"""Draws scenarios in which the network is cut while a run ends, and workers take long to stop on both sides."""

from __future__ import annotations

import random

from tests.simulation.scenario import Fault, Role, Scenario

ALONE = 3  # of so many seeds one


def draw_parted(seed: int) -> Scenario:
    """The scenario of a seed: the side without the head is enough to go on, and does not know of the end."""
    dice = random.Random(f"parted/{seed}")
    nodes, lease_s = dice.choice([4, 4, 5]), dice.choice([3.0, 6.0])
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=2,
        nodes_max=nodes,
        workers=dice.choice([(1,), (2,)]),
        work_s=60.0,
        patience_s=30.0,
    )
    at = round(dice.uniform(5, 10), 3)
    side = tuple(dice.sample(range(1, nodes), 2))
    here = dice.choice([number for number in range(nodes) if number not in side])
    ends = dice.choice(
        [
            Fault(what="stop", at=at),
            Fault(what="exit_worker", node=here, at=at),
            *[Fault(what="term", node=here, at=at)] * 3,
        ]
    )
    cut_at = round(at + dice.uniform(0.0, 1.2), 3)
    cut = Fault(what="partition", side=side, at=cut_at, lasts_s=lease_s * dice.choice([2.5, 4.0, 8.0]))
    if ends.what == "term" and seed % ALONE == 0:  # who has got the TERM is cut off itself while its workers stop
        cut = Fault(what="partition", side=(here,), at=cut_at, lasts_s=lease_s * 8)
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes,
        max_restarts=0,
        lease_s=lease_s,
        join_timeout_s=30.0,
        faults=(ends, cut),
    )
