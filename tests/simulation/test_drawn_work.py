"""Newer seeds are played in less time, and the older ones, which tests name, stay what they are."""

from __future__ import annotations

from tests.simulation.draws.general import draw
from tests.simulation.draws.short_work import LEASES, SHORT_FROM, STARTS_S


def test_newer_seeds_work_a_lease_and_a_half_at_most_and_their_faults_come_meanwhile() -> None:
    drawn = [draw(seed) for seed in range(SHORT_FROM, SHORT_FROM + 300)]
    for scenario in drawn:
        most_s = LEASES * scenario.lease_s + STARTS_S
        assert max(role.work_s for role in scenario.roles) <= most_s
        assert all(fault.at <= 3 + 2 * most_s for fault in scenario.faults)
    assert {scenario.lease_s for scenario in drawn} == {3, 10, 30}


def test_older_seeds_work_as_long_as_they_did() -> None:
    assert max(role.work_s for seed in range(SHORT_FROM - 300, SHORT_FROM) for role in draw(seed).roles) == 40.0
