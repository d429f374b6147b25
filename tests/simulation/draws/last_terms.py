"""Draws scenarios in which a TERM comes while ranks exit 0 one after the other: it may be why they do."""

from __future__ import annotations

import random

from tests.simulation.scenario import Fault, Role, Scenario


def draw_last_terms(seed: int) -> Scenario:
    """The scenario of a seed."""
    dice = random.Random(f"last terms/{seed}")
    nodes, work_s = dice.choice([1, 2, 3]), dice.choice([3.0, 5.0])
    role = Role(
        name="trainer",
        restart=dice.choice(["restart_all", "restart_role"]),
        nodes_min=dice.randint(1, nodes),
        nodes_max=nodes,
        workers=(dice.choice([4, 8]),),
        work_s=work_s,
        patience_s=dice.choice([0.0, 0.0, 2.0]),
    )
    what = dice.choice(["term_all", "term_all", "term"])
    fault = Fault(
        what=what,
        node=dice.randrange(nodes),
        phase="running",
        at=round(work_s * dice.uniform(0.75, 1.25), 3),
    )
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes,
        lease_s=dice.choice([3.0, 10.0]),
        disk_s=dice.choice([(0.001,), (0.01, 0.05)]),
        exit_timeout_s=dice.choice([None, None, 2.0]),
        is_requeued=dice.choice([True, False, None]),
        faults=(fault,),
    )
