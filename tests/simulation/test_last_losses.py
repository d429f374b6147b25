"""Nodes that are lost while the workers stop for the end of the run: nobody is told twice, and causes stay true."""

from __future__ import annotations

import pytest

from tests.simulation.draws.kinds import KINDS
from tests.simulation.planted.fences import FENCE_BUGS, PlantedFences
from tests.simulation.rules.invariants import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import each_third


@pytest.mark.long
@pytest.mark.parametrize("bug", each_third(FENCE_BUGS, of="test_a_planted_bug_of_a_head_that_loses_a_node_is_found"))
def test_a_planted_bug_of_a_head_that_loses_a_node_is_found(bug: str) -> None:
    kind, seed, words, _ = FENCE_BUGS[bug]
    with pytest.raises(BrokenRuleError, match=words):
        SimulatedRun(KINDS[kind](seed), PlantedFences(bug)).play()
