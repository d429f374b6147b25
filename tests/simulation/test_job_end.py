"""The job of a batch script that is lost is ended, also where the agent that would do so is lost as the run ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation.scenario import HEAD, Fault, Role, Scenario
from tests.simulation.world import SimulatedRun

HOST_IS_LOST = Fault(what="power_off", node=0, at=5.0)


def play(*faults: Fault, **changes: object) -> SimulatedRun:
    """A run of four nodes, two of which are enough."""
    role = Role(name="trainer", restart="restart_all", nodes_min=2, nodes_max=4, workers=(1,), work_s=20.0)
    scenario = replace(Scenario(seed=2, roles=(role,), nodes=4, faults=faults), **changes)  # type: ignore[arg-type]
    run = SimulatedRun(scenario)
    run.play()
    assert run.disk.results
    return run


def names_of_enders(run: SimulatedRun) -> list[str]:
    return [agent.name for agent in run.agents if agent.ends_job]


def enders(*faults: Fault, **changes: object) -> list[str]:
    """Who ends the job of a run with these faults."""
    return names_of_enders(play(*faults, **changes))


def test_the_first_agent_ends_the_job() -> None:
    assert enders(HOST_IS_LOST) == ["node1"]


@pytest.mark.parametrize("lease_s", [3.0, 10.0, 60.0])
def test_the_heads_agent_does_if_the_script_is_lost_as_the_result_is_written(lease_s: float) -> None:
    moved = Fault(what="kill_agent", node=0, at=5.0)  # so that the head is on another machine than the script
    assert enders(moved, lease_s=lease_s) == []
    joins_late = Fault(what="starts_late", node=0, lasts_s=40.0)
    ends = Fault(what="power_off", node=0, phase="closing")
    assert enders(joins_late, ends, lease_s=lease_s) == ["node1"]


@pytest.mark.parametrize("what", ["power_off", "pause"])
def test_the_heads_agent_does_if_the_one_that_was_told_to_is_lost(what: str) -> None:
    head_moves = Fault(what="power_off", node=1, at=5.0)
    is_lost = Fault(what=what, node=2, phase="closing", lasts_s=20.0)
    assert "node3" in enders(HOST_IS_LOST, head_moves, is_lost)


@pytest.mark.parametrize("at_s", [0.05, 0.06, 0.07])
def test_the_heads_agent_does_if_the_one_that_was_told_to_is_killed_before_it_has(at_s: float) -> None:
    """Its kernel closes the connection as that of an agent that has left."""
    head_moves = Fault(what="power_off", node=1, at=5.0)
    run = play(HOST_IS_LOST, head_moves, Fault(what="kill_agent", node=2, phase="closing", at=at_s))
    assert run.disk.results[0].written_by == "node3"
    assert run.job_ends.enders_told == ["node2"]
    assert run.agent("node2").was_killed
    assert names_of_enders(run) == ["node3"]


def test_another_agent_does_if_the_head_that_is_to_end_it_is_killed_first() -> None:
    run = play(HOST_IS_LOST, Fault(what="kill_agent", node=HEAD, phase="closing", at=0.05))
    assert run.disk.results[0].written_by == "node1"
    assert run.job_ends.enders_told == ["node1"]
    assert run.agent("node1").was_killed
    assert names_of_enders(run) == ["node2"]


def test_the_heads_agent_does_if_the_machine_of_the_script_goes_down_after_its_agent() -> None:
    """As in an orderly shutdown, which ends the agent first."""
    is_killed = Fault(what="kill_agent", node=0, at=5.0)
    assert enders(is_killed) == []
    assert enders(is_killed, Fault(what="power_off", node=0, at=5.5)) == ["node1"]


def test_the_heads_agent_does_if_the_machine_of_the_script_goes_down_before_its_agent_has_a_part() -> None:
    """The others claim the allocation anew, and know of that machine what they have found out at their start."""
    run = play(Fault(what="starts_late", node=3, lasts_s=15.0), Fault(what="power_off", node=0, at=4.0))
    assert run.disk.results[0].reason == "succeeded"
    assert not any("node0" in claim.members for claim in run.disk.claims.values())
    assert names_of_enders(run) == [run.disk.results[0].written_by]


def test_an_agent_that_finds_the_result_does_if_the_head_is_lost_before_it_has_told_anybody() -> None:
    is_lost = Fault(what="power_off", node=HEAD, phase="closing", at=0.18)
    run = play(HOST_IS_LOST, is_lost, disk_s=(0.05,))
    assert run.disk.results[0].written_by == "node1"
    assert not run.agent("node1").is_powered
    assert names_of_enders(run) == ["node2", "node3"]


@pytest.mark.parametrize("at", [7.0, 7.2, 7.4])
def test_a_spare_that_finds_the_result_does_if_the_head_is_lost_before_it_has_told_anybody(at: float) -> None:
    """It has had no part in any attempt, but it was with the head that is lost when that opened the latest one."""
    role = Role(name="trainer", restart="restart_all", nodes_min=1, nodes_max=2, workers=(1,), work_s=6.0)
    faults = Fault(what="kill_writer"), Fault(what="power_off", node=0, at=at)
    run = SimulatedRun(Scenario(seed=8, roles=(role,), nodes=3, lease_s=3.0, disk_s=(0.2,), faults=faults))
    run.play()
    assert [result.written_by for result in run.disk.results] == ["node1"]
    assert run.agent("node1").was_killed
    assert names_of_enders(run) == ["node2"]
