"""Draws scenarios in which nodes copy their ranks' states to each other, and one or two are lost beside spares."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation.scenario import HEAD, Fault, Role, Scenario

KINDS = ("kill_agent", "power_off", "power_off", "partition")


def draw_copies(seed: int) -> Scenario:
    """The scenario of a seed: in most of them copies are as fast as saves, so that a lost node costs two at most."""
    dice = random.Random(f"copies/{seed}")
    members, spares = dice.choice([2, 2, 3, 4]), dice.choice([1, 1, 2])
    has_many = random.Random(f"copies/many/{seed}").random() < 0.1  # that hold one state, as a node comes that does not
    members = 5 if has_many else members
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=members,
        nodes_max=members,
        workers=dice.choice([(1,), (2,)]),
        work_s=dice.choice([20.0, 40.0]),
        failure_chance=dice.choice([0.0, 0.0, 0.2]),
    )
    scenario = Scenario(
        seed=seed,
        roles=(role,),
        nodes=members + spares,
        lease_s=dice.choice([3.0, 10.0]),
        join_timeout_s=30.0,
        delays_s=dice.choice([(0.001,), (0.0, 0.001, 0.02)]),
        disk_s=dice.choice([(0.001,), (0.01, 0.05)]),
        spawn_s=dice.choice([(0.02,), (0.02, 1.0)]),
        rejoin=dice.choice(["at_restart", "immediately"]),
        keeps_every_s=dice.choice([0.05, 0.4, 1.0, 1.0]),
        damage_chance=dice.choice([0.0, 0.0, 0.0, 0.1]),
        are_replicated=dice.random() < 0.15 or has_many,
        copy_s=dice.choice([0.02, 0.15, 0.15, 0.5]),
    )
    at, faults = dice.uniform(2.0, 15.0), list[Fault]()
    for _ in range(dice.choice([1, 1, 2])):
        fault = Fault(what=dice.choice(KINDS), node=dice.choice([HEAD, *range(members)]), at=round(at, 3))
        if fault.what == "partition":
            side = (dice.randrange(members),)
            fault = replace(fault, side=side, lasts_s=round(scenario.lease_s * dice.choice([0.5, 3.0, 6.0]), 3))
        faults.append(fault)
        at += dice.choice([0.0, 0.3, dice.uniform(0, 4 * scenario.lease_s)])
    return replace(scenario, faults=tuple(faults))
