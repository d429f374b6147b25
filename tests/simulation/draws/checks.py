"""Draws scenarios of roles that restart alone, in which a node is found unhealthy while one of them restarts."""

from __future__ import annotations

import random

from tests.simulation.scenario import HEALTH, Fault, Role, Scenario

FOR_EVER_S = 1e6
TOGETHER = 0.4  # of the seeds


def draw_checks(seed: int) -> Scenario:
    """The scenario of a seed."""
    dice = random.Random(f"checks/{seed}")
    names = ("trainer", "reader", "watcher")[: dice.choice([2, 2, 3])]
    roles = tuple(_role(dice, name) for name in names)
    nodes = sum(role.nodes_max for role in roles) + dice.choice([0, 1, 1, 2])
    faults = list[Fault]()
    for _ in range(dice.choice([1, 2, 2, 3])):
        node, at = dice.randrange(nodes), dice.uniform(3, 25)
        lasts_s = dice.choice([FOR_EVER_S, FOR_EVER_S, dice.uniform(5, 60)])
        faults.append(Fault(what=HEALTH, node=node, at=round(at - 1, 3), lasts_s=round(lasts_s, 3)))
        # What fails there has the node examined, and what fails elsewhere is a restart that is under way meanwhile.
        faults.append(Fault(what=dice.choice(["bus_worker", "break_store"]), node=node, at=round(at, 3)))
        if dice.random() < 0.7:
            other = Fault(what="kill_worker", node=dice.randrange(nodes), at=round(at + dice.uniform(-3, 1), 3))
            faults.append(other)
    beside = random.Random(f"checks/{seed}/beside")
    lease_s, backoff_first_s = dice.choice([3.0, 10.0]), dice.choice([0.0, 2.0])
    disk_s = dice.choice([(0.001,), (0.01, 0.05)])
    if beside.random() < TOGETHER:  # another failure is on disk first, and stops the node before its own is
        first = min((fault for fault in faults if fault.what != HEALTH), key=lambda fault: fault.at)
        faults.append(Fault(what="exit_worker", node=first.node, at=round(first.at - beside.uniform(0.001, 0.01), 3)))
        disk_s = (0.001, 0.8)
    return Scenario(
        seed=seed,
        roles=roles,
        nodes=nodes,
        max_restarts=8,
        lease_s=lease_s,
        backoff_first_s=backoff_first_s,
        disk_s=disk_s,
        rejoin=dice.choice(["at_restart", "immediately"]),
        faults=tuple(faults),
    )


def _role(dice: random.Random, name: str) -> Role:
    least = dice.choice([1, 1, 2])
    return Role(
        name=name,
        restart=dice.choice(["restart_role", "restart_role", "restart_role", "restart_all"]),
        nodes_min=least,
        nodes_max=least + dice.choice([0, 1]),
        workers=dice.choice([(1,), (2,)]),
        work_s=dice.choice([20.0, 60.0]),
        patience_s=dice.choice([0.0, 4.0, 10.0]),
    )
