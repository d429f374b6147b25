"""Draws scenarios in which nodes are blamed in one of several starts of the job, which is to start once more."""

from __future__ import annotations

import random

from tests.simulation.scenario import Fault, Role, Scenario

LASTS_S = 14.0  # each start, but for the last one
FAR_S = 10_000.0  # the end of the job's time


def draw_avoided(seed: int) -> Scenario:
    """The scenario of a seed: the job is preempted, and the next start is to do without the nodes that are at fault."""
    dice = random.Random(f"avoided/{seed}")
    nodes, starts = dice.choice([2, 2, 3]), dice.choice([1, 2, 2, 3, 5])
    most = dice.choice([nodes, nodes, max(2, nodes - 1)])
    least = dice.choice([most, most, 1])
    role = Role(name="trainer", restart="restart_all", nodes_min=least, nodes_max=most, workers=(1,), work_s=2000.0)
    faults, last = [Fault(what="requeue", at=LASTS_S * start) for start in range(1, starts)], LASTS_S * (starts - 1)
    begins = LASTS_S * dice.choice([starts - 1, starts - 1, dice.randrange(starts)])
    for number, node in enumerate(dice.sample(range(nodes), dice.choice([1, 1, 2]))):
        faults.append(Fault(what="break_gpu", node=node, at=begins + 7.0 + 3.0 * number))
    if dice.random() < 0.3:
        faults.append(Fault(what="kill_agent", node=nodes - 1, at=last + 12.0))
    ends = Fault(what=dice.choice(["preempt", "preempt_warned"]), at=last + 16.0, lasts_s=60.0)
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes,
        max_restarts=9,
        no_progress_limit=9,
        progress="moves",
        lease_s=3.0,
        time_left_s=FAR_S,
        requeue_max=9,
        requeue_on=("preempted", "node_loss"),
        faults=tuple(sorted((*faults, ends), key=lambda fault: fault.at)),
    )
