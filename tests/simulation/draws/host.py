"""Draws scenarios in which the batch script's machine loses its power when it is head no more."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation.draws.spares import draw_host_off
from tests.simulation.scenario import Fault, Scenario

AGENT_FIRST = 4  # of five seeds


def draw_host(seed: int) -> Scenario:
    """The scenario of a seed: in half of them nothing else is lost, and in a few the others stay enough for all."""
    scenario = draw_host_off(seed)
    if seed % 5 == AGENT_FIRST:
        return _draw_agent_first(seed, scenario)
    return scenario if seed % 2 else replace(scenario, faults=scenario.faults[:2])


def _draw_agent_first(seed: int, scenario: Scenario) -> Scenario:
    """Its agent alone is killed, which no script minds, and its machine loses its power when nobody there is a member.

    Only at the end of the run can somebody see that the script is gone.
    """
    dice = random.Random(f"host/agent first/{seed}")
    pause, off, *others = scenario.faults
    killed = replace(off, what="kill_agent")
    off = Fault(what="power_off", node=0, at=round(killed.at + dice.uniform(0.5, 60.0), 3))
    return replace(scenario, faults=(pause, killed, off, *others[: dice.choice([0, 0, 1])]))
