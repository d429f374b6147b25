"""A few runs of the soak test, with the faults of fixed seeds: `make soak-local` does hundreds."""

from __future__ import annotations

import random

import pytest

from tests.integration.conftest import Door
from tests.soak.campaign import Scenario, play
from tests.soak.faults import Kind, draw_faults

LEASE_S = 2.0
FAULTS = 5


@pytest.mark.variant(of="test_the_others_go_on_if_the_head_is_killed")
@pytest.mark.local
@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", range(4))
def test_a_run_survives_random_faults(door: Door, seed: int) -> None:
    play(door, Scenario.draw(seed, FAULTS, lease_s=LEASE_S, digits_every=0))


def test_a_seed_draws_the_same_scenario_again_and_all_kinds_of_faults_are_drawn() -> None:
    assert Scenario.draw(7, 6) == Scenario.draw(7, 6)
    drawn = {fault.kind for fault in draw_faults(random.Random(0), 300)}
    endings = (Scenario.draw(seed, 1).ending for seed in range(400))
    drawn |= {ending.kind for ending in endings if ending is not None}
    assert drawn == set(Kind)
    assert any(Scenario.draw(seed, 6).is_digits for seed in range(10))
