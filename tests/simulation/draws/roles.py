"""Draws scenarios of several roles in which nothing but workers goes wrong: each role restarts as it says."""

from __future__ import annotations

import random

from hpc_elastic.plan.roles import RestartPolicy
from tests.simulation.scenario import Fault, Role, Scenario

POLICIES: tuple[tuple[RestartPolicy, ...], ...] = (
    ("restart_all", "restart_role"),
    ("restart_role", "restart_role"),
    ("restart_role", "restart_role", "restart_all"),
    ("restart_all", "ignore"),
    ("restart_role", "ignore"),
    ("restart_role", "restart_role", "ignore"),
)

BREAK_GPU = 0.3  # of the seeds: a failure for which a node is blamed, and a spare to take its place
BREAK_ANOTHER = 0.5  # of these: there is no spare for the next one


def draw_roles(seed: int) -> Scenario:
    """The scenario of a seed."""
    dice = random.Random(f"roles/{seed}")
    roles = [_role(dice, *pair) for pair in zip(("trainer", "reader", "watcher"), dice.choice(POLICIES), strict=False)]
    members, spares, faults = sum(role.nodes_max for role in roles), dice.choice([0, 0, 1]), tuple[Fault, ...]()
    beside = random.Random(f"roles/{seed}/gpu")
    if beside.random() < BREAK_GPU:
        spares = 1
        faults = (Fault(what="break_gpu", node=beside.randrange(members), at=round(beside.uniform(2, 6), 3)),)
        if beside.random() < BREAK_ANOTHER:
            faults += (Fault(what="break_gpu", node=beside.randrange(members), at=round(beside.uniform(6, 20), 3)),)
    return Scenario(
        seed=seed,
        roles=tuple(roles),
        nodes=members + spares,
        faults=faults,
        max_restarts=dice.choice([1, 3, 6]),
        no_progress_limit=dice.choice([2, 4]),
        progress=dice.choice(["unknown", "moves", "stuck"]),
        backoff_first_s=dice.choice([0.0, 0.0, 1.0]),
        exit_timeout_s=dice.choice([None, None, 20.0]),
        lease_s=dice.choice([3.0, 10.0]),
        collateral_chance=dice.choice([0.0, 0.0, 0.5]),
    )


def _role(dice: random.Random, name: str, restart: RestartPolicy) -> Role:
    nodes = dice.choice([1, 1, 2])
    return Role(
        name=name,
        restart=restart,
        nodes_min=nodes,
        nodes_max=nodes,
        workers=dice.choice([(1,), (2,), (1, 2)]),
        work_s=dice.choice([2.0, 8.0, 20.0]),
        failure_chance=dice.choice([0.1, 0.3, 0.5]),
        patience_s=dice.choice([0.0, 0.0, 2.0]),
    )
