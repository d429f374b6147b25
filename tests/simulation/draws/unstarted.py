"""Draws scenarios of a role whose failures are ignored, and whose workers start in one attempt and not in the next."""

from __future__ import annotations

import random

from tests.simulation.scenario import Role, Scenario


def draw_unstarted(seed: int) -> Scenario:
    """The scenario of a seed."""
    dice = random.Random(f"unstarted/{seed}")
    trainers, watchers = dice.choice([1, 2]), dice.choice([1, 2])
    work_s = dice.choice([3.0, 8.0])
    trainer = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=trainers,
        nodes_max=trainers,
        workers=(dice.choice([1, 2]),),
        work_s=work_s,
        failure_chance=0.5,
    )
    watcher = Role(
        name="watcher",
        restart="ignore",
        nodes_min=watchers,
        nodes_max=watchers,
        workers=(1,),
        work_s=dice.choice([0.5, 30.0]),
        start_failure_chance=dice.choice([0.3, 0.5]),
    )
    return Scenario(
        seed=seed,
        roles=(trainer, watcher),
        nodes=trainers + watchers,
        max_restarts=4,
        no_progress_limit=9,
        disk_s=dice.choice([(0.001,), (0.01, 0.05)]),
        spawn_s=dice.choice([(0.02,), (0.02, 1.0)]),
    )
