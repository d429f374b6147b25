"""Draws scenarios of several roles whose nodes break, fall sick, are drained or die one after the other."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Literal

from tests.simulation.scenario import HEALTH, Fault, Role, Scenario

MANY = 9  # of 32 seeds
BREAK = 18  # nodes then; a claim carries sixteen on
WHATS = ("break_gpu", "break_gpu", "break_gpu", "ask_drain", "kill_agent", "exit_worker")


def draw_bad_nodes(seed: int) -> Scenario:
    """The scenario of a seed: now and then too few nodes of a role are left, and spares may take places, or may not."""
    dice = random.Random(f"bad nodes/{seed}")
    if seed % 32 == MANY:
        return _draw_many(seed, dice)
    trainers, readers = dice.choice([1, 2, 2, 3]), dice.choice([1, 1, 2])
    restart: Literal["restart_all", "restart_role"] = dice.choice(["restart_all", "restart_all", "restart_role"])
    trainer = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=dice.randint(1, trainers),
        nodes_max=trainers,
        workers=(1,),
        work_s=40.0,
        patience_s=dice.choice([0.0, 0.0, 3.0]),
    )
    reader = replace(
        trainer, name="reader", restart=restart, nodes_min=dice.randint(1, readers), nodes_max=readers, workers=(2,)
    )
    nodes = trainers + readers + dice.choice([0, 0, 1, 2])
    faults, at = list[Fault](), 5.0
    for _ in range(dice.choice([1, 2, 3, 4])):
        at = round(at + dice.choice([0.05, dice.uniform(2, 6), dice.uniform(2, 6)]), 3)
        faults.append(Fault(what=dice.choice(WHATS), node=dice.randrange(nodes), at=at))
    if dice.random() < 0.4:
        since, lasts_s = dice.choice([0.0, 0.0, round(dice.uniform(3, 12), 3)]), dice.choice([8.0, 30.0, 10_000.0])
        faults.append(Fault(what=HEALTH, node=dice.randrange(nodes), at=since, lasts_s=lasts_s))
    return Scenario(
        seed=seed,
        roles=(trainer, reader),
        nodes=nodes,
        max_restarts=9,
        no_progress_limit=9,
        progress="moves",
        backoff_first_s=dice.choice([0.0, 0.0, 2.0]),
        lease_s=3.0,
        join_timeout_s=20.0,
        rejoin=dice.choice(["at_restart", "immediately"]),
        faults=tuple(faults),
    )


def _draw_many(seed: int, dice: random.Random) -> Scenario:
    """More nodes break, one after the other, than a claim carries on."""
    nodes = BREAK + dice.choice([1, 2])
    role = Role(name="trainer", restart="restart_all", nodes_min=1, nodes_max=nodes, workers=(1,), work_s=70.0)
    broken = dice.sample(range(nodes), BREAK)
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes,
        max_restarts=2 * BREAK,
        no_progress_limit=2 * BREAK,
        progress="moves",
        lease_s=10.0,
        faults=tuple(Fault(what="break_gpu", node=node, at=5.0 + 3 * each) for each, node in enumerate(broken)),
    )
