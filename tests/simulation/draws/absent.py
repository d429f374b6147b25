"""Draws scenarios in which nodes do not come, or cannot take part, from the start, so that there may be too few."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation.scenario import HEALTH, Fault, Role, Scenario

FOR_EVER_S = 1e6
ALL_NEEDED = 0.6  # of the seeds
WHATS = (
    *("never_starts", "never_starts", "other_version", "unfit", "starts_late", HEALTH),
    *("partition", "partition", "partition"),
)


def draw_absent(seed: int) -> Scenario:
    """The scenario of a seed."""
    dice = random.Random(f"absent/{seed}")
    members, spares = dice.choice([2, 2, 3, 4]), dice.choice([0, 1, 1, 2])
    least = members if dice.random() < ALL_NEEDED else dice.randint(1, members)
    role = Role(name="trainer", restart="restart_all", nodes_min=least, nodes_max=members, workers=(1,), work_s=3.0)
    nodes, join_timeout_s = members + spares, dice.choice([20.0, 40.0, 60.0])
    absent = dice.sample(range(1, nodes), dice.choice([1, 1, min(2, nodes - 1)]))
    if spares and dice.random() < 0.4:  # a member that cannot take part, and the spare in its place comes late
        absent = [dice.randrange(1, members), *range(members, nodes)]
        faults = [_draw_fault(dice, dice.choice(["other_version", HEALTH]), absent[0], join_timeout_s)]
        faults += [_draw_fault(dice, "starts_late", node, join_timeout_s) for node in absent[1:]]
    else:
        faults = [_draw_fault(dice, dice.choice(WHATS), node, join_timeout_s) for node in absent]
    scenario = Scenario(
        seed=seed,
        roles=(role,),
        nodes=nodes,
        lease_s=dice.choice([3.0, 10.0]),
        join_timeout_s=join_timeout_s,
        join_retries=dice.choice([0, 0, 1]),
        disk_s=dice.choice([(0.001,), (0.01, 0.05)]),
        srun_tells=seed % 3 == 1,
        requeue_max=int(seed % 5 == 1),
        requeue_on=("node_loss",),
        faults=tuple(faults),
    )
    return _one_too_few(scenario) if seed % 8 == 6 else scenario


def _one_too_few(scenario: Scenario) -> Scenario:
    """The run could do without the node that is not fit; then it shows that it lacks another one, too."""
    members = scenario.max_nodes + 2
    role = replace(scenario.roles[0], nodes_min=members, nodes_max=members)
    faults = Fault(what="unfit", node=1), Fault(what="never_starts", node=2)
    return replace(scenario, roles=(role,), nodes=members + 1, requeue_max=1, faults=faults)


def _draw_fault(dice: random.Random, what: str, node: int, join_timeout_s: float) -> Fault:
    if what == "partition":
        return Fault(what=what, side=(node,), lasts_s=dice.choice([7.0, FOR_EVER_S, FOR_EVER_S]))
    if what == "starts_late":
        return Fault(what=what, node=node, lasts_s=round(dice.uniform(2, 1.2 * join_timeout_s), 3))
    return Fault(what=what, node=node, lasts_s=FOR_EVER_S if what == HEALTH else 0.0)
