"""Draws scenarios in which ranks run on for ever when others have exited 0, until `exit_timeout` is over."""

from __future__ import annotations

import random

from hpc_elastic.plan.roles import RestartPolicy
from tests.simulation.scenario import Fault, Role, Scenario

POLICIES: tuple[tuple[RestartPolicy, ...], ...] = (
    ("restart_all",),
    ("restart_all", "restart_role"),
    ("restart_role", "restart_role"),
    ("restart_all", "ignore"),
    ("restart_role", "ignore", "restart_role"),
)
TWO_LATE: tuple[RestartPolicy, ...] = ("restart_all", "restart_role", "restart_role")  # of every eighth seed
SAVES = 5  # of six seeds: the ranks that are late have saved, and the run succeeds without them
QUICK_S = 1.5  # the work of a role whose ranks have all ended when one of another role fails


def draw_overdue(seed: int) -> Scenario:
    """The scenario of a seed: some ranks end early, and of the others, which hang, one fails meanwhile."""
    dice = random.Random(f"overdue/{seed}")
    policies = dice.choice(POLICIES)
    if seed % 8 == 7:
        policies = TWO_LATE
    roles = tuple(
        _role(dice, name, restart, is_first=number == 0, is_alone=len(policies) == 1)
        for number, (name, restart) in enumerate(zip(("trainer", "reader", "watcher"), policies, strict=False))
    )
    nodes = sum(role.nodes_max for role in roles)
    fails = Fault(what="exit_worker", node=dice.randrange(roles[0].nodes_max % nodes, nodes), at=dice.uniform(4.5, 9))
    return Scenario(
        seed=seed,
        roles=roles,
        nodes=nodes,
        max_restarts=4,
        no_progress_limit=9,
        progress="moves",
        exit_timeout_s=dice.choice([4.0, 9.0, 9.0, 70.0]),
        after_exit_timeout="succeed" if seed % 3 == 2 else "fail",
        keeps_every_s=0.5 if seed % 6 == SAVES else None,
        lease_s=3.0,
        faults=(fails,),
    )


def _role(dice: random.Random, name: str, restart: RestartPolicy, *, is_first: bool, is_alone: bool) -> Role:
    nodes = dice.choice([1, 2])
    return Role(
        name=name,
        restart=restart,
        nodes_min=nodes,
        nodes_max=nodes,
        workers=(2,) if is_alone else dice.choice([(1,), (2,)]),
        work_s=6.0 if is_alone else QUICK_S if is_first else dice.choice([QUICK_S, 6.0]),
        hang_chance=0.4 if is_alone else 0.0 if is_first else 0.7,
        patience_s=dice.choice([0.0, 0.0, 2.0]),
    )
