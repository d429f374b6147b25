"""A member that hears nothing says goodbye: it has half a lease to be back, and then its loss counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation.draw_goodbyes import LONG, draw_goodbyes
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(200)


def test_the_head_that_has_lost_one_node_too_many_ends_the_run_and_names_that_node() -> None:
    """It waited two leases, and the deaf node, which took all others for lost, ended the run before it."""
    scenario = draw_goodbyes(0)
    fault = replace(scenario.faults[0], side=(1,), lasts_s=LONG * scenario.lease_s)
    run = SimulatedRun(replace(scenario, max_node_losses=0, faults=(fault,)))
    run.play()
    (result,) = run.disk.results
    assert (result.reason, result.written_by) == ("node_losses_used_up", "node0")
    assert result.cause.startswith("node1 was lost")


@pytest.mark.long
@pytest.mark.parametrize("seeds", parts_of(SEEDS, check=2, test=8, of="test_no_rule_is_broken_by_a_goodbye"))
def test_no_rule_is_broken_by_a_goodbye(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_goodbyes(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --goodbyes --seed {seed}`"
            )
