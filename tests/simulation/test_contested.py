"""An attempt that two heads want to claim: one of them has it, and the other one leaves nothing behind."""

from __future__ import annotations

import pytest

from tests.simulation.disk import LAYOUT
from tests.simulation.scenario import Fault, Role, Scenario
from tests.simulation.world import SimulatedRun


@pytest.mark.parametrize(("claims_for_s", "disk_s"), [(0.0, 0.01), (0.03, 0.1)])
def test_a_head_that_stood_still_in_its_claim_removes_the_roster_that_it_has_written_in_vain(
    claims_for_s: float, disk_s: float
) -> None:
    """Its successor has claimed the attempt when it wakes up."""
    role = Role(name="trainer", restart="restart_all", nodes_min=1, nodes_max=3, workers=(2,), work_s=60.0)
    restarts = Fault(what="kill_worker", node=1, at=10.0)
    stands_still = Fault(what="pause", node=0, phase="claiming", nth=2, at=claims_for_s, lasts_s=12.0)
    run = SimulatedRun(
        Scenario(seed=1, roles=(role,), nodes=3, lease_s=3.0, disk_s=(disk_s,), faults=(restarts, stands_still))
    )
    run.play()
    assert [claim.head for claim in run.disk.claims.values()] == ["node0", "node1"]
    assert [result.reason for result in run.disk.results] == ["succeeded"]
    assert LAYOUT.world(2) in run.files.content
    assert LAYOUT.proposed_world(2, "node0") not in run.files.content
