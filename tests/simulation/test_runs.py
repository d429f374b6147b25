"""Two thousand random runs, none of which may break a rule, and some that are not random."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from hpc_elastic.plan.roles import RestartPolicy
from hpc_elastic.rundir.records import RunResult, RunState
from tests.simulation.rules import BrokenRuleError
from tests.simulation.scenario import PHASES, Fault, Role, Scenario
from tests.simulation.world import SimulatedRun, play

SEEDS = range(2000)
PART = 250


@pytest.mark.parametrize("first", range(0, len(SEEDS), PART))
def test_no_rule_is_broken(first: int) -> None:
    for seed in SEEDS[first : first + PART]:
        try:
            play(seed)
        except BrokenRuleError as error:
            pytest.fail(f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --seed {seed}`")


def test_a_seed_plays_the_same_run_again() -> None:
    for seed in range(20):
        assert play(seed).trace_hash == play(seed).trace_hash


def test_a_seed_plays_the_same_run_in_another_process() -> None:
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-m", "tests.simulation", "--seed", "87"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        assert f"trace {play(87).trace_hash}" in output


def test_the_seeds_reach_every_way_to_end_and_every_phase() -> None:
    reasons: set[str] = set()
    phases: set[str] = set()
    for seed in range(1000):
        run = play(seed)
        reasons.update(result.reason for result in run.disk.results)
        phases.update(run.phases)
    assert phases >= set(PHASES)
    assert reasons >= {
        *("succeeded", "restarts_used_up", "no_progress", "start_failed", "exit_timeout", "unkillable"),
        *("stop_requested", "terminated", "node_lost", "setup_failed", "nodes_missing"),
    }


def test_the_seeds_strike_in_every_phase_of_another_roles_restart() -> None:
    met: set[tuple[str, str]] = set()
    for seed in SEEDS:
        scenario = Scenario.draw(seed)
        if len(scenario.roles) > 1 and any(role.restart == "restart_role" for role in scenario.roles):
            met.update((fault.phase, fault.what) for fault in scenario.faults)
    assert {(phase, "kill_worker") for phase in PHASES} <= met


# Runs that are not random.


def a_role(name: str, restart: RestartPolicy = "restart_all", *, nodes: int = 2, work_s: float = 10.0) -> Role:
    return Role(name=name, restart=restart, nodes_min=nodes, nodes_max=nodes, workers=(2, 1), work_s=work_s)


def a_scenario(*roles: Role, faults: tuple[Fault, ...] = (), **changes: object) -> Scenario:
    roles = roles or (a_role("trainer", nodes=3),)
    scenario = Scenario(seed=1, roles=roles, nodes=sum(role.nodes_max for role in roles), faults=faults)
    return replace(scenario, **changes)  # type: ignore[arg-type]


def the_result(scenario: Scenario) -> tuple[RunResult, SimulatedRun]:
    run = SimulatedRun(scenario)
    run.play()
    (result,) = run.disk.results
    return result, run


def test_a_killed_worker_costs_one_restart() -> None:
    result, _ = the_result(a_scenario(faults=(Fault(what="kill_worker", node=1, at=6.0),)))
    assert (result.state, result.attempts, result.restarts) == (RunState.SUCCEEDED, 2, 1)


def test_a_lost_head_ends_the_run_with_a_result() -> None:
    result, run = the_result(a_scenario(faults=(Fault(what="kill_agent", node=0, at=6.0),)))
    assert (result.reason, result.exit_code) == ("node_lost", 7)
    assert {agent.exit_code for agent in run.agents[1:]} == {7}


def test_another_node_becomes_the_head_if_the_first_never_starts() -> None:
    roles = (Role(name="trainer", restart="restart_all", nodes_min=2, nodes_max=3, workers=(1,), work_s=1.0),)
    result, run = the_result(a_scenario(*roles, faults=(Fault(what="never_starts", node=0),)))
    assert (result.state, run.disk.head) == (RunState.SUCCEEDED, "node1")


def test_a_role_restarts_alone_and_the_other_runs_on() -> None:
    fault = Fault(what="kill_worker", node=2, at=6.0)
    result, run = the_result(a_scenario(a_role("trainer"), a_role("reader", "restart_role"), faults=(fault,)))
    assert (result.state, result.attempts) == (RunState.SUCCEEDED, 2)
    assert run.disk.claims[2].roles == ("reader",)
    assert set(run.witness.ended_well) == {("trainer", 1), ("reader", 2)}


def test_an_ignored_role_that_fails_whole_ends_nothing() -> None:
    faults = (Fault(what="fail_together", node=2, at=3.0), Fault(what="fail_together", node=3, at=3.0))
    roles = a_role("trainer", work_s=60.0), a_role("watcher", "ignore")
    result, _ = the_result(a_scenario(*roles, faults=faults, exit_timeout_s=20.0))
    assert (result.state, result.attempts) == (RunState.SUCCEEDED, 1)


@pytest.mark.parametrize("what", ["pause", "stall_link"])
@pytest.mark.parametrize("node", [0, 1])
def test_what_is_shorter_than_a_beat_disturbs_nobody(what: str, node: int) -> None:
    fault = Fault(what=what, node=node, at=6.0, lasts_s=2.9)
    result, _ = the_result(a_scenario(faults=(fault,)))
    assert (result.state, result.attempts) == (RunState.SUCCEEDED, 1)


@pytest.mark.parametrize("what", ["pause", "stall_link", "power_off", "cut", "kill_agent"])
def test_what_is_longer_than_a_lease_ends_the_run(what: str) -> None:
    fault = Fault(what=what, node=1, at=6.0, lasts_s=30.0)
    result, _ = the_result(a_scenario(a_role("trainer", nodes=3, work_s=100.0), faults=(fault,)))
    assert result.reason == "node_lost"


def test_a_stalled_file_system_costs_no_lease() -> None:
    fault = Fault(what="stall_disks", at=1.0, lasts_s=50.0)
    result, _ = the_result(a_scenario(faults=(fault,)))
    assert (result.state, result.attempts) == (RunState.SUCCEEDED, 1)
