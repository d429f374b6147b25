"""Draws scenarios in which the batch script's machine loses its power when it is head no more."""

from __future__ import annotations

from dataclasses import replace

from tests.simulation.draw_spares import draw_host_off
from tests.simulation.scenario import Scenario


def draw_host(seed: int) -> Scenario:
    """The scenario of a seed: in half of them nothing else is lost, and in a few the others stay enough for all."""
    scenario = draw_host_off(seed)
    return scenario if seed % 2 else replace(scenario, faults=scenario.faults[:2])
