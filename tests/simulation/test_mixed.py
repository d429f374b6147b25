"""Several roles whose nodes are lost, blamed or absent: spares of any role help, and no role begins with too few."""

from __future__ import annotations

import pytest

from tests.simulation.draw_mixed import draw_mixed
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


@pytest.mark.long
@pytest.mark.parametrize(
    "seeds", parts_of(SEEDS, check=1, test=8, of="test_no_rule_is_broken_where_several_roles_lack_nodes")
)
def test_no_rule_is_broken_where_several_roles_lack_nodes(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_mixed(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --mixed --seed {seed}`"
            )
