"""Draws scenarios in which a run ends, or starts again, while nodes write what a person has asked them to save."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation.draws.asked_saves import draw_asked_saves
from tests.simulation.scenario import HEAD, Fault, Scenario

CUTS = ("stop", "ask_stop", "ask_stop", "exit_worker", "ask_restart")


def draw_cut_saves(seed: int) -> Scenario:
    """The scenario of a seed."""
    scenario, dice = draw_asked_saves(seed), random.Random(f"cut saves/{seed}")
    at = dice.uniform(3.0, 12.0)
    roles = tuple(replace(role, work_s=60.0, failure_chance=0.0, hang_chance=0.0) for role in scenario.roles)
    asked = Fault(what="ask_save", at=round(at, 3), lasts_s=60.0)
    cut = Fault(what=dice.choice(CUTS), node=HEAD, at=round(at + dice.uniform(1.0, 4.0), 3))
    write_s = dice.choice([0.5, 2.0, 10.0])
    return replace(scenario, roles=roles, max_restarts=0, write_s=write_s, faults=(asked, cut))
