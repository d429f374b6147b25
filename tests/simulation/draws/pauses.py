"""Draws scenarios of one worker that fails nearly always: the pauses before its restarts grow, up to the longest."""

from __future__ import annotations

import random

from tests.simulation.scenario import Role, Scenario


def draw_pauses(seed: int) -> Scenario:
    """The scenario of a seed."""
    dice = random.Random(f"pauses/{seed}")
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=1,
        nodes_max=1,
        workers=(1,),
        work_s=dice.choice([0.5, 3.0]),
        failure_chance=0.97,
    )
    first_s, factor = dice.choice([(1.0, 1e200), (1.0, 1e200), (5.0, 2.0), (20.0, 2.0), (40.0, 1.5)])
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=1,
        max_restarts=dice.choice([4, 6, 8]),
        no_progress_limit=9,
        progress="moves",
        backoff_first_s=first_s,
        backoff_factor=factor,
        lease_s=dice.choice([3.0, 10.0]),
    )
