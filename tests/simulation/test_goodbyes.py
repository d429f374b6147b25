"""A member that hears nothing says goodbye: it has half a lease to be back, and then its loss counts."""

from __future__ import annotations

from dataclasses import replace

from tests.simulation.draws.goodbyes import LONG, draw_goodbyes
from tests.simulation.world import SimulatedRun


def test_the_head_that_has_lost_one_node_too_many_ends_the_run_and_names_that_node() -> None:
    """It waited two leases, and the deaf node, which took all others for lost, ended the run before it."""
    scenario = draw_goodbyes(0)
    fault = replace(scenario.faults[0], side=(1,), lasts_s=LONG * scenario.lease_s)
    run = SimulatedRun(replace(scenario, max_node_losses=0, faults=(fault,)))
    run.play()
    (result,) = run.disk.results
    assert (result.reason, result.written_by) == ("node_losses_used_up", "node0")
    assert result.cause.startswith("node1 was lost")
