"""Makes a failing schedule smaller, as long as it still fails."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.simulation.plant import Plant
from tests.simulation.scenario import Fault, Role, Scenario
from tests.simulation.world import SimulatedRun

SHORTEST_WORK_S = 1.0
SHORTEST_FAULT_S = 0.5


def fails(scenario: Scenario, plant: Plant | None = None) -> bool:
    """Whether a rule is broken, or a machine breaks down."""
    try:
        SimulatedRun(scenario, plant).play()
    except Exception:
        return True
    return False


def shrink(scenario: Scenario, plant: Plant | None = None) -> Scenario:
    """The smallest that one step after the other leads to.

    Raises:
        ValueError: it does not fail in the first place.
    """
    if not fails(scenario, plant):
        raise ValueError(f"seed {scenario.seed} breaks no rule: there is nothing to shrink")
    while (smaller := next((less for less in _steps(scenario) if fails(less, plant)), None)) is not None:
        scenario = smaller
    return scenario


def _steps(scenario: Scenario) -> Iterator[Scenario]:
    """Everything that is one thing simpler; faults first."""
    for fault in scenario.faults:
        yield scenario.without(fault)
    usual = {
        "collateral_chance": 0.0,
        "backoff_first_s": 0.0,
        "exit_timeout_s": None,
        "after_exit_timeout": "fail",
        "progress": "unknown",
        "is_requeued": False,
        "delays_s": (0.001,),
        "disk_s": (0.01,),
        "spawn_s": (0.02,),
    }
    for name, value in usual.items():
        if getattr(scenario, name) != value:
            yield replace(scenario, **{name: value})  # type: ignore[arg-type]
    for number, fault in enumerate(scenario.faults):
        for simpler in _simpler(fault):
            faults = list(scenario.faults)
            faults[number] = simpler
            yield replace(scenario, faults=tuple(faults))
    if len(scenario.roles) == 1 and scenario.roles[0].work_s > 2 * SHORTEST_WORK_S:
        yield replace(scenario, roles=(replace(scenario.roles[0], work_s=scenario.roles[0].work_s / 2),))
    for number, role in enumerate(scenario.roles):
        if role.workers != (1,):
            yield replace(scenario, roles=_with(scenario, number, workers=(1,)))
        for name in ("failure_chance", "hang_chance", "start_failure_chance", "patience_s"):
            if getattr(role, name):
                yield replace(scenario, roles=_with(scenario, number, **{name: 0.0}))


def _with(scenario: Scenario, number: int, **changes: object) -> tuple[Role, ...]:
    """The roles, with one of them changed."""
    return tuple(
        replace(role, **changes) if place == number else role  # type: ignore[arg-type]
        for place, role in enumerate(scenario.roles)
    )


def _simpler(fault: Fault) -> Iterator[Fault]:
    """The same fault for a shorter time, or at a rounder moment."""
    if fault.lasts_s > SHORTEST_FAULT_S:
        yield replace(fault, lasts_s=round(fault.lasts_s / 2, 3))
    for digits in (0, 1):
        if round(fault.at, digits) != fault.at:
            yield replace(fault, at=round(fault.at, digits))
