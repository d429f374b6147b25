"""Draws scenarios in which something happens between two attempts, while the next is awaited, gathered or claimed.

A node is lost, one comes late, one that the run needs comes back, or two workers fail for different reasons.
"""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation.draws.quorum import draw_quorum
from tests.simulation.scenario import HEAD, SECOND, Fault, Role, Scenario

PHASES = ("claiming", "claiming", "pausing", "gathering")
OF_QUORUMS = 4  # of so many seeds one


def draw_between(seed: int) -> Scenario:
    """The scenario of a seed; in some a node that the run needs comes back, which may lose none, or one."""
    dice = random.Random(f"between/{seed}")
    if seed % OF_QUORUMS == 0:
        return replace(draw_quorum(seed), is_quorum=False, max_node_losses=dice.choice([0, 0, 1]))
    nodes = dice.choice([2, 3, 4])
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=dice.choice([1, nodes]),
        nodes_max=nodes,
        workers=(dice.choice([1, 2]),),
        work_s=25.0,
    )
    first = Fault(what=dice.choice(["exit_worker", "kill_worker"]), node=dice.randrange(nodes), at=6.0)
    if seed % OF_QUORUMS == 1:  # one fails by a TERM that nobody else got, and another one by itself just then
        other = Fault(what="term_worker", node=dice.randrange(nodes), at=first.at + dice.choice([-0.1, -0.02, 0.02]))
        return _scenario(dice, seed, role, (first, other))
    if seed % OF_QUORUMS == 2 and dice.random() < 0.5:  # one comes when the others are at work
        late = Fault(what="starts_late", node=nodes - 1, lasts_s=round(dice.uniform(7, 12), 3))
        scenario = _scenario(dice, seed, replace(role, nodes_min=1), (late,))
        return replace(scenario, join_timeout_s=4.0, rejoin="immediately")
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
    return _scenario(dice, seed, role, (first, during))


def _scenario(dice: random.Random, seed: int, role: Role, faults: tuple[Fault, ...]) -> Scenario:
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=role.nodes_max,
        backoff_first_s=dice.choice([0.0, 2.0, 6.0]),
        lease_s=3.0,
        join_timeout_s=20.0,
        disk_s=dice.choice([(0.01,), (0.3,), (0.3, 1.5)]),
        rejoin=dice.choice(["at_restart", "immediately"]),
        max_node_losses=dice.choice([64, 64, 0]),
        faults=faults,
    )
