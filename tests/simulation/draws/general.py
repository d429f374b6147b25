"""Draws a scenario for each seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from hpc_elastic.plan.roles import RestartPolicy
from tests.simulation.draws.losses import draw_survival
from tests.simulation.draws.short_work import with_short_work
from tests.simulation.scenario import JOINS, PHASES, Fault, Role, Scenario

# What can go wrong, by theme. `joins` faults are there from the start, the others come at their moments.
FAULTS = {
    "workers": ("kill_worker", "exit_worker", "term_worker", "fail_together", "break_store", "unkillable"),
    "ends": ("stop", "term", "term_all"),
    "joins": JOINS,
    "losses": ("power_off", "kill_agent", "reset"),
    "delays": ("pause", "stall_link", "stall_disk"),
    "disk": ("stall_disk", "stall_disks", "disk_fails"),
}
THEMES = ("quiet", "workers", "workers", "workers", "ends", "joins", "losses", "delays", "delays", "disk", "any", "any")
RESTARTING = ("claiming", "stopping", "pausing")  # where a restart of one role meets failures of others
DRAWN_PHASES = tuple(phase for phase in PHASES if phase != "awaiting_quorum")


def draw(seed: int) -> Scenario:
    """The scenario of a seed: every other one is about survival."""
    dice = random.Random(seed)
    if dice.random() < 0.5:
        return draw_survival(seed, dice)
    theme = dice.choice(THEMES)
    exit_timeout_s = dice.choice([None, None, dice.uniform(1, 60)])
    roles = _draw_roles(dice, theme, exit_timeout_s is not None)
    nodes = sum(dice.randint(role.nodes_min, role.nodes_max) for role in roles) + dice.choice([0, 0, 0, 0, 1, 2])
    scenario = Scenario(
        seed=seed,
        roles=roles,
        nodes=nodes,
        max_restarts=dice.choice([0, 1, 2, 3, 4]),
        no_progress_limit=dice.choice([2, 3]),
        progress=dice.choice(["unknown", "moves", "stuck"]),
        backoff_first_s=dice.choice([0, 0, 0.5, 5]),
        exit_timeout_s=exit_timeout_s,
        lease_s=dice.choice([3, 10, 10, 30]),
        join_timeout_s=dice.choice([5, 15, 30]),
        delays_s=dice.choice([(0.0,), (0.001,), (0.0, 0.001, 0.02), (0.001, 0.2)]),
        disk_s=dice.choice([(0.001,), (0.01, 0.05), (0.001, 0.01, 0.5), (0.01, 2.0)]),
        spawn_s=dice.choice([(0.02,), (0.01, 0.1), (0.02, 3.0)]),
        collateral_chance=dice.choice([0, 0, 0.5, 1]),
        rejoin=dice.choice(["at_restart", "at_restart", "immediately"]),
        is_requeued=_is_requeued(dice.random()),
    )
    scenario = with_short_work(scenario)
    if theme == "quiet":
        return scenario
    return replace(scenario, faults=_draw_faults(dice, theme, scenario))


def _is_requeued(chance: float) -> bool | None:
    """Most often not, sometimes, or the scheduler does not say."""
    return True if chance < 0.1 else None if chance < 0.2 else False


def _draw_roles(dice: random.Random, theme: str, may_hang: bool) -> tuple[Role, ...]:
    policies: list[RestartPolicy] = ["restart_all", "restart_role", "restart_role", "ignore"]
    roles = []
    is_frail = theme in ("workers", "any") and dice.random() < 0.6
    for name in ("trainer", "reader", "watcher")[: dice.choice([1, 2, 2, 3])]:
        nodes_min = dice.choice([1, 1, 2])
        roles.append(
            Role(
                name=name,
                restart=dice.choice(policies),
                nodes_min=nodes_min,
                nodes_max=nodes_min + dice.choice([0, 0, 0, 1]),
                workers=dice.choice([(1,), (2,), (2, 1), (1, 3), (3, 1, 2)]),
                work_s=10 ** dice.uniform(-1, 1.5),
                failure_chance=dice.choice([0.05, 0.2, 0.6]) if is_frail else 0.0,
                hang_chance=dice.choice([0, 0, 0.3]) if may_hang else 0.0,
                start_failure_chance=0.2 if is_frail and dice.random() < 0.2 else 0.0,
                patience_s=dice.choice([0, 0, 2, 30]),
            )
        )
    return tuple(roles)


def _draw_faults(dice: random.Random, theme: str, scenario: Scenario) -> tuple[Fault, ...]:
    kinds: Sequence[str] = FAULTS.get(theme, ())
    if theme == "any":
        kinds = [what for whats in FAULTS.values() for what in whats]
    elif theme not in ("workers", "joins"):
        kinds = (*kinds, "kill_worker", "exit_worker")
    horizon = 3 + 2 * max(role.work_s for role in scenario.roles)
    return tuple(_draw_fault(dice, dice.choice(kinds), scenario, horizon) for _ in range(dice.choice([1, 1, 2, 3, 5])))


def _draw_fault(dice: random.Random, what: str, scenario: Scenario, horizon: float) -> Fault:
    node, lasts_s = dice.randrange(scenario.nodes), 0.0
    if what in ("pause", "stall_link", "stall_disk", "stall_disks"):
        lasts_s = round(scenario.lease_s * dice.choice([0.05, 0.15, 0.3, 0.5, 0.7, 1.1, 2.5]), 3)
    elif what == "starts_late":
        lasts_s = round(dice.uniform(0, 1.5 * scenario.join_timeout_s), 3)
    elif what == "disk_fails":
        lasts_s = round(dice.uniform(0, 5), 3)
        lasts_s *= 9 if lasts_s > 4.5 else 1  # longer than anybody tries again
    if what in JOINS:
        return Fault(what=what, node=node, lasts_s=lasts_s)
    if dice.random() < 0.5:
        phases = RESTARTING if what in FAULTS["workers"] and dice.random() < 0.6 else DRAWN_PHASES
        at = dice.choice([0.0, 0.0, round(dice.uniform(0, 1), 3), round(dice.uniform(0, 6), 3)])
        return Fault(
            what=what, node=node, lasts_s=lasts_s, phase=dice.choice(phases), nth=dice.choice([1, 1, 2]), at=at
        )
    return Fault(what=what, node=node, lasts_s=lasts_s, at=round(dice.uniform(0, horizon), 3))
