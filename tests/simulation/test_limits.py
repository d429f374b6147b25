"""The end of a run at the time limit of its job, which waits for nobody."""

from __future__ import annotations

import pytest

from hpc_elastic.errors import ExitCode
from tests.simulation.scenario import Fault, Role, Scenario
from tests.simulation.world import SimulatedRun

pytestmark = pytest.mark.long


def ended_at(*faults: Fault) -> float:
    """When a run of four nodes ends, two of which are enough, and whose job has 40 s."""
    role = Role(name="trainer", restart="restart_all", nodes_min=2, nodes_max=4, workers=(1,), work_s=600.0)
    run = SimulatedRun(
        Scenario(
            seed=1,
            roles=(role,),
            nodes=4,
            lease_s=3.0,
            time_left_s=40.0,
            knows_time=True,
            lead_s=25.0,
            faults=faults,
        )
    )
    run.play()
    (result,) = run.disk.results
    assert (result.reason, result.exit_code) == ("time_limit", ExitCode.NODE_LOST)
    return run.disk.ended_at


@pytest.mark.parametrize("cut_at", [9.0, 11.0])
def test_a_time_limit_ends_the_run_as_soon_where_two_nodes_are_silent_that_could_go_on_alone(cut_at: float) -> None:
    """For want of nodes it would wait until those have had their time; but the limit ends the job for all of them."""
    cut = Fault(what="partition", side=(2, 3), at=cut_at, lasts_s=1000.0)
    assert ended_at(cut) == pytest.approx(ended_at(), abs=0.5)
