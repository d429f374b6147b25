"""Draws scenarios in which ranks take a notice: they save and exit 75, some when others are done or have failed."""

from __future__ import annotations

import random

from hpc_elastic.plan.roles import RestartPolicy
from tests.simulation.scenario import HEAD, Fault, Role, Scenario

AROUND = ("kill_worker", "exit_worker", "term_worker", "kill_agent", "ask_restart")


def draw_taken(seed: int) -> Scenario:
    """The scenario of a seed."""
    dice = random.Random(f"taken/{seed}")
    roles = [_role(dice, "trainer", dice.choice([1, 2, 2, 3]), "restart_all")]
    if dice.random() < 0.4:
        roles.append(
            _role(dice, "reader", dice.choice([1, 1, 2]), dice.choice(["restart_all", "restart_role", "ignore"]))
        )
    at = round(dice.uniform(3, 12), 3)
    faults = [Fault(what="notice", at=at)]
    if dice.random() < 0.2:
        faults.append(Fault(what="notice", at=round(at + dice.uniform(0, 1), 3)))
    if dice.random() < 0.4:
        nodes = sum(role.nodes_max for role in roles)
        when = round(at + dice.choice([-1.5, -0.2, 0.1, 0.4, 1.0]), 3)
        faults.append(Fault(what=dice.choice(AROUND), node=dice.choice([HEAD, dice.randrange(nodes)]), at=when))
    return Scenario(
        seed=seed,
        roles=tuple(roles),
        nodes=sum(role.nodes_max for role in roles),
        lease_s=dice.choice([3.0, 10.0]),
        exit_timeout_s=dice.choice([None, None, 8.0]),
        backoff_first_s=dice.choice([0.0, 0.0, 1.0]),
        heeds_notice=True,
        faults=tuple(faults),
    )


def _role(dice: random.Random, name: str, nodes: int, restart: RestartPolicy) -> Role:
    return Role(
        name=name,
        restart=restart,
        nodes_min=dice.choice([1, nodes]),
        nodes_max=nodes,
        workers=dice.choice([(1,), (2,), (1, 3)]),
        work_s=dice.choice([4.0, 8.0, 30.0]),
        patience_s=dice.choice([0.0, 2.0]),
    )
