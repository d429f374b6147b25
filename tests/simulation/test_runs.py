"""Some hundreds of random runs, none of which may break a rule."""

from __future__ import annotations

import pytest

from hpc_elastic.rundir.records import RunState
from tests.simulation.rules import BrokenRuleError
from tests.simulation.scenario import Scenario
from tests.simulation.world import SimulatedRun, play

SEEDS = range(300)


@pytest.mark.parametrize("first", range(0, len(SEEDS), 50))
def test_no_rule_is_broken(first: int) -> None:
    for seed in SEEDS[first : first + 50]:
        try:
            play(seed)
        except BrokenRuleError as error:
            pytest.fail(f"seed {seed}: {error}; play it again with `python -m tests.simulation --seed {seed}`")


def test_a_seed_plays_the_same_run_again() -> None:
    first, second = play(7), play(7)
    assert first.clock.now == second.clock.now
    assert first.disk == second.disk


def test_the_seeds_reach_every_way_to_end() -> None:
    reasons = {result.reason for seed in SEEDS for result in play(seed).disk.results}
    assert reasons >= {"succeeded", "restarts_used_up", "stop_requested", "terminated", "node_lost", "nodes_missing"}


def a_scenario(**changes: object) -> Scenario:
    usual: dict[str, object] = {
        "seed": 1,
        "nodes": 3,
        "min_nodes": 3,
        "workers": 2,
        "max_restarts": 2,
        "work_s": 10.0,
        "failure_chance": 0.0,
        "faults": (),
    }
    return Scenario(**{**usual, **changes})  # type: ignore[arg-type]


def test_a_killed_worker_costs_one_restart() -> None:
    run = SimulatedRun(a_scenario(faults=((6.0, "kill_worker", 1),)))
    run.play(100)
    (result,) = run.disk.results
    assert (result.state, result.attempts, result.restarts) == (RunState.SUCCEEDED, 2, 1)


def test_a_lost_head_ends_the_run_with_a_result() -> None:
    run = SimulatedRun(a_scenario(faults=((6.0, "lose_node", 0),)))
    run.play(100)
    (result,) = run.disk.results
    assert (result.reason, result.exit_code) == ("node_lost", 7)
    assert {node.exit_code for node in run.nodes[1:]} == {7}


def test_the_rules_catch_two_worlds_at_once() -> None:
    run = SimulatedRun(a_scenario())
    run.nodes[0].alive = {0: 1}
    run.nodes[1].alive = {0: 2}
    with pytest.raises(BrokenRuleError, match="two worlds"):
        run.play(10)


def test_the_rules_catch_a_run_without_an_end() -> None:
    with pytest.raises(BrokenRuleError, match="no end"):
        SimulatedRun(a_scenario(work_s=1000.0)).play(10)
