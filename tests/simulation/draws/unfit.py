"""Draws scenarios in which nodes cannot take part, from the start, and the run cannot begin without them."""

from __future__ import annotations

import random

from tests.simulation.scenario import Fault, Role, Scenario


def draw_unfit(seed: int) -> Scenario:
    """The scenario of a seed: one or two nodes that are not fit, and often one that does not come, or comes late."""
    dice = random.Random(f"unfit/{seed}")
    nodes = dice.choice([3, 4, 5])
    role = Role(name="trainer", restart="restart_all", nodes_min=nodes, nodes_max=nodes, workers=(1,), work_s=5.0)
    unfit = dice.sample(range(1, nodes), dice.choice([1, 2, 2]))
    faults = [Fault(what="unfit", node=node) for node in unfit]
    others = [node for node in range(1, nodes) if node not in unfit]
    if seed % 3 and others:
        what = dice.choice(["never_starts", "starts_late"])
        faults.append(Fault(what=what, node=others[0], lasts_s=round(dice.uniform(2.0, 9.0), 3)))
    if seed % 4 == 0:  # one of those comes too late to be waited for, or just in time
        faults.append(Fault(what="starts_late", node=unfit[0], lasts_s=round(dice.uniform(0.5, 4.0), 3)))
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes,
        lease_s=dice.choice([3.0, 10.0]),
        join_timeout_s=30.0,
        faults=tuple(faults),
    )
