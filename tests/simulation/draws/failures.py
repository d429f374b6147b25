"""Draws scenarios in which nothing but workers goes wrong, and again and again: with progress, without, and unknown."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation.scenario import Role, Scenario

LONG_PAUSES, GAPS = 9, (3, 11)  # of sixteen seeds


def draw_failures(seed: int) -> Scenario:
    """The scenario of a seed."""
    dice = random.Random(f"failures/{seed}")
    nodes = dice.choice([1, 2, 2, 3])
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=nodes,
        nodes_max=nodes,
        workers=dice.choice([(1,), (2,), (1, 3)]),
        work_s=dice.choice([0.5, 3.0, 10.0]),
        failure_chance=dice.choice([0.2, 0.4, 0.7]),
        hang_chance=dice.choice([0.0, 0.0, 0.2]),
        patience_s=dice.choice([0.0, 2.0]),
    )
    scenario = Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes,
        max_restarts=dice.choice([0, 2, 4, 8]),
        no_progress_limit=dice.choice([2, 3, 4]),
        progress=dice.choice(["unknown", "moves", "stuck", "stuck"]),
        steps=dice.choice(["none", "moves", "stuck", "stuck"]),
        backoff_first_s=dice.choice([0.0, 0.0, 1.0]),
        exit_timeout_s=5.0 if role.hang_chance else None,
        lease_s=dice.choice([3.0, 10.0]),
        collateral_chance=dice.choice([0.0, 0.0, 0.5, 1.0]),
    )
    if seed % 16 in GAPS:
        role = replace(role, failure_chance=0.7)
        return replace(
            scenario, roles=(role,), max_restarts=8, steps="gaps", progress=dice.choice(["unknown", "stuck"])
        )
    return _with_long_pauses(scenario) if seed % 16 == LONG_PAUSES else scenario


def _with_long_pauses(scenario: Scenario) -> Scenario:
    """The same of one worker that fails nearly always, and pauses that would soon be longer than any number."""
    role = replace(scenario.roles[0], nodes_min=1, nodes_max=1, workers=(1,), hang_chance=0.0, failure_chance=0.97)
    return replace(
        scenario,
        roles=(role,),
        nodes=1,
        max_restarts=6,
        no_progress_limit=9,
        backoff_first_s=1.0,
        backoff_factor=1e200,
        progress="moves",
        exit_timeout_s=None,
        collateral_chance=0.0,
    )
