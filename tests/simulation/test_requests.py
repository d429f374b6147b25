"""People's requests in simulated runs: a restart, a drain and an announced stop are carried out, and soon."""

from __future__ import annotations

import pytest

from hpc_elastic.membership.actions import Log
from tests.simulation.draws.requests import draw_requests
from tests.simulation.planted.requests import REQUEST_BUGS, PlantedRequests
from tests.simulation.rules.invariants import BrokenRuleError
from tests.simulation.scenario import Fault, Role, Scenario
from tests.simulation.world import SimulatedRun
from tests.tiers import each_third

SEEDS = range(400)
# Where a bug shows that many seeds pass by: it is tried first. What changes the schedules changes this.
SEEN = {"an announced stop comes at once": 42}
WORDS = ("a person asked for", "a person has drained", "that was announced", "refuses to drain")


@pytest.mark.parametrize("seed", range(4))
def test_a_head_that_takes_over_leaves_out_at_once_whom_a_person_has_drained(seed: int) -> None:
    """It reads who was drained before it opens its first attempt, and not a look later, which cost another attempt."""
    role = Role(name="trainer", restart="restart_all", nodes_min=2, nodes_max=3, workers=(1,), work_s=60.0)
    faults = Fault(what="ask_drain", node=3, at=11.0), Fault(what="kill_agent", node=0, at=30.0)
    run = SimulatedRun(Scenario(seed=seed, roles=(role,), nodes=4, faults=faults))
    run.play()
    assert [set(claim.members) for claim in run.disk.claims.values()] == [
        {"node0", "node1", "node2"},
        {"node1", "node2"},
    ]


def test_a_head_that_others_have_succeeded_leaves_a_request_to_the_one_that_is_head() -> None:
    """It stood still, and finds the request with the claim of its successor, which has carried it out."""
    role = Role(name="trainer", restart="restart_all", nodes_min=2, nodes_max=4, workers=(1,), work_s=60.0)
    faults = Fault(what="pause", node=0, at=10.0, lasts_s=25.0), Fault(what="ask_restart", at=32.0)
    run = SimulatedRun(Scenario(seed=1, roles=(role,), nodes=4, faults=faults))
    run.play()
    assert [claim.head for claim in run.disk.claims.values()] == ["node0", "node1", "node1"]
    said = [what.text for _, _, what in run.events if isinstance(what, Log) and "asked for a restart" in what.text]
    assert said == [
        "attempt 2: ada@login asked for a restart; restarting all ranks",
        "attempt 3: 3 ranks on 3 nodes (ada@login asked for a restart)",
    ]


def shows(seed: int, bug: str) -> bool:
    try:
        SimulatedRun(draw_requests(seed), PlantedRequests(bug)).play()
    except BrokenRuleError as error:
        return any(words in str(error) for words in WORDS)
    return False


@pytest.mark.long
@pytest.mark.parametrize("bug", each_third(REQUEST_BUGS, of="test_a_planted_bug_of_requests_is_found"))
def test_a_planted_bug_of_requests_is_found(bug: str) -> None:
    assert any(shows(seed, bug) for seed in (SEEN.get(bug, 0), *SEEDS)), f"no seed of {len(SEEDS)} shows that {bug}"
