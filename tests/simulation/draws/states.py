"""Draws scenarios in which the ranks save their states in memory."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation.draws.copies import draw_copies
from tests.simulation.draws.general import draw
from tests.simulation.draws.spares import draw_spares
from tests.simulation.draws.state_roles import draw_state_roles
from tests.simulation.scenario import Fault, Role, Scenario

FAILS_AGAIN = 6  # of twenty seeds


def draw_states(seed: int) -> Scenario:
    """The scenario of a seed: what another drawing has for it, with ranks that save; some for copies, and for roles."""
    if seed % 4 == 3:
        return draw_copies(seed)
    if seed % 20 == 17:
        return draw_state_roles(seed)
    if seed % 20 == FAILS_AGAIN:
        return _draw_fails_again(seed)
    dice = random.Random(f"states/{seed}")
    scenario = (draw_spares if dice.random() < 0.4 else draw)(seed)
    roles = tuple(
        replace(role, work_s=max(role.work_s, 2.0), failure_chance=max(role.failure_chance, dice.choice([0.0, 0.3])))
        for role in scenario.roles
    )
    saving = replace(
        scenario,
        roles=roles,
        keeps_every_s=dice.choice([0.05, 0.2, 0.2, 1.0]),
        are_replicated=dice.random() < 0.5,
        damage_chance=dice.choice([0.0, 0.0, 0.1]),
    )
    return replace(saving, copy_s=dice.choice([None, None, 0.02, 0.02, 0.1, 0.5]))


def _draw_fails_again(seed: int) -> Scenario:
    """Ranks save, one fails, and what begins with their states fails before it saves: most times in the same way."""
    dice = random.Random(f"states/fails again/{seed}")
    nodes, failures = dice.choice([1, 2, 3]), dice.choice([2, 3, 3, 4])
    node, others = dice.randrange(nodes), dice.choice([0.0, 0.0, 0.4])
    faults = [Fault(what="exit_worker", node=node, phase="running", at=dice.choice([2.5, 4.0]))]
    for number in range(1, failures):
        what = (
            "break_store" if number > 1 and dice.random() < others else "exit_worker"
        )  # the second fails as the first
        faults.append(Fault(what=what, node=node, phase="running", nth=number + 1, at=0.3))
    role = Role(name="trainer", restart="restart_all", nodes_min=1, nodes_max=nodes, workers=(2,), work_s=30.0)
    return Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes,
        lease_s=3.0,
        max_restarts=6,
        keeps_every_s=1.0,
        are_replicated=dice.random() < 0.5,
        copy_s=dice.choice([None, 0.05]),
        faults=tuple(faults),
    )
