"""Draws scenarios in which members grow deaf and tell their head goodbye, and workers of those that are left fail."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation.draws.goodbyes import draw_deaf
from tests.simulation.scenario import HEAD, SECOND, Fault, Scenario

SHORT, LONG = (0.85, 1.0), (3.0, 6.0)  # leases
CUT = 3  # of so many seeds one: then nobody hears a word, and the head says something that comes too late
FAILS = ("exit_worker", "kill_worker", "kill_agent", "ask_restart")


def draw_farewells(seed: int) -> Scenario:
    """The scenario of a seed: in every other one as many grow deaf as are left, so that the fault may be the head's."""
    scenario, dice = draw_deaf(seed), random.Random(f"farewells/{seed}")
    lease_s, (deaf,) = scenario.lease_s, scenario.faults
    if seed % CUT == 0:
        return replace(scenario, is_goodbye=False, faults=_cut(dice, deaf, lease_s))
    lasts_s = round(lease_s * dice.uniform(*dice.choice([SHORT, LONG, LONG])), 3)
    role = scenario.roles[0]
    if seed % 2:
        scenario = replace(scenario, nodes=4, roles=(replace(role, nodes_min=2, nodes_max=4),), max_node_losses=64)
        deaf = replace(deaf, side=(SECOND, 3))
    faults, at = [replace(deaf, lasts_s=lasts_s)], deaf.at + lease_s
    for _ in range(dice.choice([1, 1, 2])):
        at = round(at + lease_s * dice.uniform(0.3, 2.5), 3)
        faults.append(Fault(what=dice.choice(FAILS), node=dice.choice([HEAD, HEAD, SECOND]), at=at))
    return replace(scenario, is_goodbye=False, faults=tuple(faults))


def _cut(dice: random.Random, deaf: Fault, lease_s: float) -> tuple[Fault, ...]:
    """One member is cut off for as long as it is patient, or its kernel alone gives its connection up."""
    if dice.random() < 0.4:
        return (replace(deaf, what="unreachable", way="both", lasts_s=0.05),)
    what, way = dice.choice([("partition", "both"), ("partition", "both"), ("one_way", "out"), ("one_way", "in")])
    cut = replace(deaf, what=what, way=way, lasts_s=round(lease_s * dice.uniform(0.45, 0.75), 3))
    said = Fault(what=dice.choice(FAILS[:2]), node=HEAD, at=round(cut.at + cut.lasts_s * dice.uniform(0.1, 0.9), 3))
    return (cut, said) if dice.random() < 0.8 else (cut,)
