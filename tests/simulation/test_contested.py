"""An attempt that two heads want to claim: one of them has it, and the other one leaves nothing behind."""

from __future__ import annotations

import pytest

from hpc_elastic.membership.actions import Note
from tests.simulation.disk import LAYOUT
from tests.simulation.draws.machines import draw_machines
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


@pytest.mark.long
def test_a_successor_that_steps_down_as_it_wakes_up_claims_no_attempt_before() -> None:
    """It gathers the members while the head stands still, and stands still itself as that answers it.

    When it wakes up both are there, the answer and the end of its round, and the dice say which comes first.
    """
    role = Role(name="trainer", restart="restart_all", nodes_min=2, nodes_max=3, workers=(1,), work_s=40.0)
    head = Fault(what="pause", node=0, at=10.0, lasts_s=9.0)
    successor = Fault(what="pause", node=1, at=19.25, lasts_s=3.0)
    goes_on = set()
    for seed in range(1, 7):
        run = SimulatedRun(
            Scenario(seed=seed, roles=(role,), nodes=3, lease_s=10.0, delays_s=(0.1,), faults=(head, successor))
        )
        run.play()
        assert [result.reason for result in run.disk.results] == ["succeeded"]
        assert len(run.disk.claims) == 2, seed
        goes_on.add(run.disk.claims[2].head)
    assert goes_on == {"node0", "node1"}


def test_a_head_that_has_not_read_of_the_others_attempt_is_joined_by_a_node_that_it_had_lost() -> None:
    """Both are cut off from the others, node2 for a moment from node1 as well, and their disks hide the claim."""
    role = Role(name="trainer", restart="restart_all", nodes_min=2, nodes_max=5, workers=(1,), work_s=30.0)
    stalls = ((2, 10.0), (1, 15.0), (2, 16.0))
    run = SimulatedRun(
        Scenario(
            seed=1,
            roles=(role,),
            nodes=5,
            lease_s=3.0,
            faults=(
                Fault(what="kill_agent", node=0, at=10.0),
                Fault(what="partition", side=(1, 2), at=10.0, lasts_s=15.0),
                Fault(what="partition", side=(2,), at=10.0, lasts_s=6.4),
                *(Fault(what="stall_disk", node=node, at=at, lasts_s=4.0) for node, at in stalls),
            ),
        )
    )
    run.play()
    notes = [what for _, _, what in run.events if isinstance(what, Note)]
    told = [
        (note.name, note.attempt) for note in notes if note.name == "attempt.opened" or "node2 is back" in note.message
    ]
    assert told[:3] == [("attempt.opened", 1), ("attempt.opened", 2), ("node.returned", 1)]
    assert [claim.head for claim in run.disk.claims.values()] == ["node0", "node3"]
    assert [result.reason for result in run.disk.results] == ["succeeded"]


@pytest.mark.long
def test_a_head_of_a_later_allocation_is_joined_while_it_claims_by_a_node_that_it_had_lost() -> None:
    """It carries on what the head of the allocation before has opened, and its own attempt is not on the disk yet."""
    SimulatedRun(draw_machines(84000325)).play()
