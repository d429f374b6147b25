"""Agents whose head is gone before the first attempt: one claims the allocation, and the others join it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpc_elastic.agent.rendezvous.search import HeadSearch
from tests.simulation.draws.general import draw
from tests.simulation.draws.unopened import draw_unopened
from tests.simulation.rules.invariants import BrokenRuleError
from tests.simulation.world import SimulatedRun

# All give the dead head up in the same second, on a file server that takes as long for each answer; and one of them
# sees its machine without power, as if there were no route to it.
AT_ONCE = {"agent killed": 73, "machine without power": 373}


@pytest.mark.long
@pytest.mark.parametrize("seed", AT_ONCE.values(), ids=AT_ONCE.keys())
def test_agents_that_give_a_dead_head_up_together_join_the_one_that_claims_first(seed: int) -> None:
    run = SimulatedRun(draw_unopened(seed))
    run.play()
    assert [result.reason for result in run.disk.results] == ["succeeded"]


@pytest.mark.long
def test_agents_whose_head_did_not_live_to_tell_them_of_the_first_attempt_go_on_without_it() -> None:
    drawn = draw(21044560)  # the head loses power while its first words to them are on their way
    roles = tuple(replace(role, nodes_min=1, work_s=10.0) for role in drawn.roles)
    run = SimulatedRun(replace(drawn, roles=roles, join_timeout_s=60))
    run.play()
    assert [result.reason for result in run.disk.results] == ["succeeded"]
    assert [claim.head for claim in run.disk.claims.values()] == ["node0", "node1"]


@pytest.mark.long
def test_a_run_that_ends_for_want_of_nodes_that_are_there_breaks_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    async def finds_none(search: HeadSearch, say: object) -> bool:
        return False

    monkeypatch.setattr(HeadSearch, "_has_successor", finds_none)
    with pytest.raises(BrokenRuleError, match=r"ends for want of nodes, and .* have been there"):
        SimulatedRun(draw_unopened(AT_ONCE["agent killed"])).play()
