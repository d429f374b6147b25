"""Draws scenarios in which one thing alone goes wrong, or nothing; `promptness` says how soon it is answered."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation.scenario import HEAD, Fault, Role, Scenario

LOSSES = ("power_off", "kill_agent", "power_off", "kill_agent")
WORKERS = ("kill_worker", "exit_worker", "fail_together", "break_store", "term_worker")
LONG_LEASE_S = 30.0  # in which the scheduler is asked about a silent member
UNFIT = ("unfit", "other_version", "never_starts", "starts_late")


def draw_alone(seed: int) -> Scenario:
    """The scenario of a seed."""
    dice = random.Random(f"alone/{seed}")
    nodes = dice.choice([2, 3, 3, 4, 5])
    spare = 1 if nodes > 2 and dice.random() < 0.3 else 0
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=dice.randint(1, max(1, nodes - spare - 1)),
        nodes_max=nodes - spare,
        workers=dice.choice([(1,), (2,), (1, 3)]),
        work_s=dice.choice([10.0, 30.0, 60.0]),
    )
    roles: tuple[Role, ...] = (role,)
    if dice.random() < 0.25 and nodes > 2:
        other = Role(
            name="reader",
            restart=dice.choice(["restart_all", "restart_role"]),
            nodes_min=1,
            nodes_max=1,
            workers=(1,),
            work_s=dice.choice([5.0, 30.0]),
        )
        most = max(1, role.nodes_max - 1)
        roles = (replace(role, nodes_min=min(role.nodes_min, most), nodes_max=most), other)
    scenario = Scenario(
        seed=seed,
        roles=roles,
        nodes=nodes,
        max_restarts=dice.choice([0, 1, 3]),
        backoff_first_s=dice.choice([0, 0, 2]),
        exit_timeout_s=dice.choice([None, None, 20.0]),
        lease_s=dice.choice([3.0, 10.0, 30.0, 60.0]),
        join_timeout_s=dice.choice([20.0, 60.0, 120.0]),
        rejoin=dice.choice(["at_restart", "immediately"]),
    )
    faults = _draw_fault(dice, scenario)
    if "starts_late" in (fault.what for fault in faults) and roles[0].work_s < scenario.join_timeout_s:
        roles = (replace(roles[0], work_s=2 * scenario.join_timeout_s), *roles[1:])
    scenario = replace(scenario, roles=roles, faults=faults)
    falls_silent = scenario.lease_s >= LONG_LEASE_S and random.Random(f"alone/silent/{seed}").random() < 0.25
    return _with_silent_member(scenario) if falls_silent else scenario


def _with_silent_member(scenario: Scenario) -> Scenario:
    """The same, and what goes wrong is that a member has no power: the run lasts until its lease is over."""
    roles = (replace(scenario.roles[0], work_s=3 * scenario.lease_s), *scenario.roles[1:])
    at = 5.0 + scenario.seed % 20
    return replace(scenario, roles=roles, faults=(Fault(what="power_off", node=1, at=at),))


def _draw_fault(dice: random.Random, scenario: Scenario) -> tuple[Fault, ...]:
    node = dice.choice([HEAD, dice.randrange(scenario.nodes)])
    at = round(dice.uniform(3, 3 + scenario.roles[0].work_s), 3)
    theme = dice.choice(["nothing", "loss", "loss", "loss", "worker", "worker", "stop", "term", "join", "join"])
    if theme == "loss":
        return (Fault(what=dice.choice(LOSSES), node=node, at=at),)
    if theme == "worker":
        return (Fault(what=dice.choice(WORKERS), node=max(0, node), at=at),)
    if theme in ("stop", "term"):
        return (Fault(what=dice.choice([theme, "term_all"]) if theme == "term" else "stop", at=at),)
    if theme == "join":
        lasts_s = round(dice.uniform(0, 1.2 * scenario.join_timeout_s), 3)
        return (Fault(what=dice.choice(UNFIT), node=dice.randrange(scenario.nodes), lasts_s=lasts_s),)
    return ()
