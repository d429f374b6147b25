"""The network is cut while a run ends, and workers take long to stop on both sides."""

from __future__ import annotations

import pytest

from tests.simulation.draw_parted import draw_parted
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize(
    "seeds", parts_of(SEEDS, check=2, test=8, of="test_no_rule_is_broken_where_an_end_is_cut_in_two")
)
def test_no_rule_is_broken_where_an_end_is_cut_in_two(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_parted(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --parted --seed {seed}`"
            )
