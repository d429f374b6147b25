"""Nodes that are lost while the workers stop for the end of the run: nobody is told twice, and causes stay true."""

from __future__ import annotations

import pytest

from tests.simulation.draw_last_losses import draw_last_losses
from tests.simulation.kinds import KINDS
from tests.simulation.planted_fences import FENCE_BUGS, PlantedFences
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize(
    "seeds", parts_of(SEEDS, check=2, test=20, of="test_no_rule_is_broken_where_nodes_are_lost_as_the_run_ends")
)
def test_no_rule_is_broken_where_nodes_are_lost_as_the_run_ends(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_last_losses(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --last-losses --seed {seed}`"
            )


@pytest.mark.long
@pytest.mark.parametrize("bug", FENCE_BUGS)
def test_a_planted_bug_of_a_head_that_loses_a_node_is_found(bug: str) -> None:
    kind, seed, words, _ = FENCE_BUGS[bug]
    with pytest.raises(BrokenRuleError, match=words):
        SimulatedRun(KINDS[kind](seed), PlantedFences(bug)).play()
