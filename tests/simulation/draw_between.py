"""Draws scenarios in which a node is lost between two attempts: while the next one is awaited, gathered or claimed."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation.draw_quorum import draw_quorum
from tests.simulation.scenario import HEAD, SECOND, Fault, Role, Scenario

PHASES = ("claiming", "claiming", "pausing", "gathering")
OF_QUORUMS = 4  # of so many seeds one


def draw_between(seed: int) -> Scenario:
    """The scenario of a seed; in some a node that the run needs comes back, which may lose none, or one."""
    dice = random.Random(f"between/{seed}")
    if seed % OF_QUORUMS == 0:
        return replace(draw_quorum(seed), is_quorum=False, max_node_losses=dice.choice([0, 0, 1]))
    nodes, lease_s = dice.choice([2, 3, 4]), 3.0
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=dice.choice([1, nodes]),
        nodes_max=nodes,
        workers=(dice.choice([1, 2]),),
        work_s=25.0,
    )
    first = Fault(what=dice.choice(["exit_worker", "kill_worker"]), node=dice.randrange(nodes), at=6.0)
    what = dice.choice(["kill_agent", "kill_agent", "power_off", "partition", "pause", "exit_worker"])
    lost = dice.choice([SECOND, SECOND, nodes - 1, HEAD])
    during = Fault(
        what=what,
        node=lost,
        side=(lost,),
        phase=dice.choice(PHASES),
        nth=dice.choice([1, 2, 2, 2]),
        at=dice.choice([0.0, 0.05, 0.3, 1.0]),
        lasts_s=dice.choice([4.0, 12.0]) if what in ("partition", "pause") else 0.0,
    )
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes,
        backoff_first_s=dice.choice([0.0, 2.0, 6.0]),
        lease_s=lease_s,
        join_timeout_s=20.0,
        disk_s=dice.choice([(0.01,), (0.3,), (0.3, 1.5)]),
        rejoin=dice.choice(["at_restart", "immediately"]),
        max_node_losses=dice.choice([64, 64, 0]),
        faults=(first, during),
    )
