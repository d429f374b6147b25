"""Makes a failing schedule smaller, as long as it still fails."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.simulation.plant import Plant
from tests.simulation.scenario import Scenario
from tests.simulation.world import SimulatedRun


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
        "progress": "unknown",
        "is_requeued": False,
        "delays_s": (0.001,),
        "disk_s": (0.01,),
        "spawn_s": (0.02,),
    }
    for name, value in usual.items():
        if getattr(scenario, name) != value:
            yield replace(scenario, **{name: value})  # type: ignore[arg-type]
    for number, role in enumerate(scenario.roles):
        for name in ("failure_chance", "hang_chance", "start_failure_chance", "patience_s"):
            if getattr(role, name):
                roles = list(scenario.roles)
                roles[number] = replace(role, **{name: 0.0})  # type: ignore[arg-type]
                yield replace(scenario, roles=tuple(roles))
