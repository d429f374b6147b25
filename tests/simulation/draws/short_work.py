"""How long the workers of newer seeds work at most: beats of an hour find no more than those of a lease and a half."""

from __future__ import annotations

from dataclasses import replace

from tests.simulation.scenario import Scenario

SHORT_FROM = 100_000_000  # the first of these seeds: tests name older ones, which must stay the schedules that they are
LEASES, STARTS_S = 1.5, 3.0  # a loss is found out within a lease; and starting workers takes that long at most


def with_short_work(scenario: Scenario) -> Scenario:
    """The scenario, whose faults are not drawn yet; a tenth of the time that it takes to play is saved."""
    if scenario.seed < SHORT_FROM:
        return scenario
    most_s = LEASES * scenario.lease_s + STARTS_S
    return replace(scenario, roles=tuple(replace(role, work_s=min(role.work_s, most_s)) for role in scenario.roles))
