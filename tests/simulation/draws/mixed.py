"""Draws scenarios of several roles that lose nodes, or lack some from the start, with spares of whichever role."""

from __future__ import annotations

import random
from dataclasses import replace

from hpc_elastic.plan.roles import RestartPolicy
from tests.simulation.scenario import HEAD, HEALTH, Fault, Role, Scenario

POLICIES: tuple[tuple[RestartPolicy, ...], ...] = (
    ("restart_all", "restart_all"),
    ("restart_all", "restart_role"),
    ("restart_role", "restart_role"),
    ("restart_all", "restart_all", "restart_role"),
)
LOSSES = ("kill_agent", "kill_agent", "power_off")
GAP_S = 12.0  # between two things
LATE = 2  # of eight seeds


def draw_mixed(seed: int) -> Scenario:
    """The scenario of a seed: one node is lost, or several, or they never come, and often a worker fails later."""
    dice = random.Random(f"mixed/{seed}")
    roles = tuple(
        _role(dice, name, restart)
        for name, restart in zip(("trainer", "reader", "watcher"), dice.choice(POLICIES), strict=False)
    )
    if seed % 8 == LATE:  # there is room for the last node, which the first attempt does not wait for
        roles = (*roles[:-1], replace(roles[-1], nodes_max=roles[-1].nodes_min + 1))
    nodes = sum(role.nodes_max for role in roles) + (0 if seed % 8 == LATE else dice.choice([0, 1, 1, 2]))
    at, faults = round(dice.uniform(5, 8), 3), list[Fault]()
    way = dice.choice(["one", "one", "some", "absent", "broken", "broken", "unwell"])
    way = "late" if seed % 8 == LATE else way
    if way == "absent":
        faults = [
            Fault(what="never_starts", node=node)
            for node in dice.sample(range(1, nodes), dice.choice([1, min(2, nodes - 1)]))
        ]
    elif way == "late":
        faults = [Fault(what="starts_late", node=nodes - 1, lasts_s=24.0)]
    elif way == "broken":  # nodes that are blamed, as long as others can take their places
        order = dice.sample(range(nodes), min(3, nodes))
        faults = [Fault(what="break_gpu", node=node, at=at + GAP_S * number) for number, node in enumerate(order)]
    elif way == "unwell":  # who cannot take the place of another one
        faults = [
            Fault(what=HEALTH, node=nodes - 1, lasts_s=1e6),
            Fault(what="kill_agent", node=dice.randrange(nodes - 1), at=at),
        ]
    else:
        lost = dice.sample([HEAD, *range(min(nodes, roles[0].nodes_max + 1))], 1 if way == "one" else 2)
        faults = [
            Fault(what=dice.choice(LOSSES), node=node, at=at + GAP_S * number) for number, node in enumerate(lost)
        ]
    if way not in ("one", "late") and dice.random() < 0.7:
        later = at + GAP_S * len(faults)
        faults.append(Fault(what="exit_worker", node=dice.randrange(nodes), at=later))
    return Scenario(
        seed=seed,
        roles=roles,
        nodes=nodes,
        no_progress_limit=9,
        lease_s=3.0,
        join_timeout_s=dice.choice([10.0, 20.0]),
        delays_s=dice.choice([(0.001,), (0.0, 0.001, 0.02)]),
        rejoin="immediately" if way == "late" else dice.choice(["at_restart", "immediately"]),
        faults=tuple(faults),
    )


def _role(dice: random.Random, name: str, restart: RestartPolicy) -> Role:
    least = dice.choice([1, 1, 2])
    return Role(
        name=name,
        restart=restart,
        nodes_min=least,
        nodes_max=least + dice.choice([0, 0, 1]),
        workers=dice.choice([(1,), (2,), (1, 2)]),
        work_s=45.0,
    )
