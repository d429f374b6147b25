"""Draws scenarios in which one member hears nothing any more, and tells its head goodbye, which still hears it."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation.scenario import HEAD, SECOND, Fault, Role, Scenario

SHORT, LONG = 0.85, 6.0  # leases


def draw_goodbyes(seed: int) -> Scenario:
    """The scenario of a seed: in some the head that is told goodbye has taken the place of one that was lost before."""
    scenario = draw_deaf(seed)
    return _to_successor(scenario) if seed % 8 == 4 else scenario


def draw_deaf(seed: int) -> Scenario:
    """A world whose second member grows deaf, and nothing else."""
    dice = random.Random(f"goodbyes/{seed}")
    nodes, lease_s = dice.choice([3, 3, 4]), dice.choice([9.0, 12.0])
    role = Role(
        name="trainer",
        restart="restart_all",
        nodes_min=dice.randint(2, nodes - 1),
        nodes_max=nodes,
        workers=dice.choice([(1,), (2,)]),
        work_s=60.0,
    )
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes,
        lease_s=lease_s,
        join_timeout_s=60.0,
        max_node_losses=dice.choice([0, 0, 1, 64]),
        is_goodbye=True,
        faults=(
            Fault(
                what="one_way",
                side=(SECOND,),
                way="in",
                at=round(dice.uniform(6, 12), 3),
                lasts_s=lease_s * dice.choice([SHORT, LONG, LONG]),
            ),
        ),
    )


def _to_successor(scenario: Scenario) -> Scenario:
    killed = Fault(what="kill_agent", node=HEAD, side=(HEAD,), at=3.0)
    role = replace(scenario.roles[0], nodes_min=2, nodes_max=4)
    last = replace(scenario.faults[0], side=(3,))
    losses = scenario.max_node_losses + 1
    return replace(scenario, roles=(role,), nodes=4, max_node_losses=losses, faults=(killed, last))
