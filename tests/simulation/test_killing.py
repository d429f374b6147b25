"""Who may open an attempt while workers of the one before are killed: whoever takes their agent for dead, at once."""

from __future__ import annotations

import pytest

from tests.simulation.draws.overwritten import draw_overwritten
from tests.simulation.rules.invariants import FENCES_S, BrokenRuleError
from tests.simulation.world import SimulatedRun


def a_run_of_three_nodes() -> SimulatedRun:
    seed = next(seed for seed in range(100) if draw_overwritten(seed).nodes == 3)
    return SimulatedRun(draw_overwritten(seed))


def test_only_the_head_that_a_member_was_reset_from_may_go_on_as_it_kills_and_not_for_long() -> None:
    run = a_run_of_three_nodes()
    head, member, other = run.agents
    member.is_running = True
    assert not run.rules._is_killing(member, head)
    member.reset_from = head, run.clock.now
    assert run.rules._is_killing(member, head)
    assert not run.rules._is_killing(member, other)
    run.clock.now += 2 * FENCES_S
    assert not run.rules._is_killing(member, head)


def test_anyone_may_go_on_a_moment_after_an_agent_has_ended() -> None:
    run = a_run_of_three_nodes()
    head, ended, other = run.agents
    ended.is_running, ended.gone_at = False, run.clock.now
    assert run.rules._is_killing(ended, head)
    assert run.rules._is_killing(ended, other)
    run.clock.now += 2 * FENCES_S
    assert not run.rules._is_killing(ended, head)


def test_a_broken_rule_keeps_nothing_of_its_run() -> None:
    run = a_run_of_three_nodes()
    run.clock.after(1.0, lambda: run.crashes(BrokenRuleError("for this test")))
    with pytest.raises(BrokenRuleError, match="for this test"):
        run.play()
    assert BrokenRuleError.first is None
