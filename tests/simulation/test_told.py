"""What machines tell people and each other: the rules find each bug that is planted in it."""

from __future__ import annotations

import pytest

from tests.simulation.draws.kinds import KINDS
from tests.simulation.planted.told import BUGS, PlantedTold
from tests.simulation.rules.invariants import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import each_third

SEEDS = range(60)
SHOWN_BY = {
    "a cause does not say who got the TERM": "terms",
    "the end of an attempt is noted twice": "failures",
    "a head that is over has another phase": "failures",
    "nodes that gather are told of each other": "failures",
    "a node that leaves by itself ends the job": "unkillable",
}


def play_until_found(bug: str) -> None:
    for seed in SEEDS:
        SimulatedRun(KINDS[SHOWN_BY[bug]](seed), PlantedTold(bug)).play()


@pytest.mark.long
@pytest.mark.parametrize("bug", each_third(BUGS, of="test_a_bug_in_what_is_told_is_found"))
def test_a_bug_in_what_is_told_is_found(bug: str) -> None:
    with pytest.raises(BrokenRuleError):
        play_until_found(bug)
