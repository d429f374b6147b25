"""Draws scenarios in which nodes cannot reach the first head from the start, nor, now and then, another one."""

from __future__ import annotations

import random

from tests.simulation.scenario import Fault, Role, Scenario

FOR_EVER_S = 1e6
LATE = 4  # of so many seeds one has a node that comes late


def draw_unreached(seed: int) -> Scenario:
    """The scenario of a seed: a cut, mostly of the first node alone, which lasts or heals while nodes give it up."""
    dice = random.Random(f"unreached/{seed}")
    nodes = dice.choice([2, 3, 4, 4, 5, 6])
    most = dice.choice([nodes, nodes, max(1, nodes - 1)])
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=dice.randint(1, most),
        nodes_max=most,
        workers=(1,),
        work_s=5.0,
    )
    others = list(range(1, nodes))
    side = dice.choice([(0,), (0,), (0,), (0, dice.choice(others))])
    lasts_s = dice.choice([FOR_EVER_S, FOR_EVER_S, round(dice.uniform(5, 130), 3)])
    faults = [Fault(what="partition", side=side, lasts_s=lasts_s)]
    if dice.random() < 0.2:  # another cut, which leaves no node that reaches most others
        faults.append(Fault(what="partition", side=(dice.choice(others),), lasts_s=FOR_EVER_S))
    if dice.random() < 0.2:
        at = round(dice.uniform(20, 100), 3)
        faults.append(Fault(what=dice.choice(["kill_agent", "power_off"]), node=dice.randrange(nodes), at=at))
    if seed % LATE == 1:
        late = Fault(what="starts_late", node=dice.choice(others), lasts_s=round(dice.uniform(5, 120), 3))
        faults.append(late)
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes,
        lease_s=dice.choice([3.0, 10.0]),
        join_timeout_s=dice.choice([60.0, 200.0, 600.0]),
        join_retries=dice.choice([0, 0, 1, 3]),
        disk_s=dice.choice([(0.001,), (0.01, 0.05), (0.5,)]),
        srun_tells=seed % 3 == 1,
        faults=tuple(faults),
    )
