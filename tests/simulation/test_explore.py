"""The exploration plays every schedule of its bound, says whether it has, and finds planted bugs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.simulation.explore import Exploration, base, main
from tests.simulation.planted.machines import Planted
from tests.simulation.scenario import POINT, Fault
from tests.simulation.world import SimulatedRun
from tests.tiers import variants

SMALL = 2.0  # leases: so few states that the bound is reached in a second or two
AT_WORK = 72  # the point at which all workers have just been started
# What finds it: the kinds of faults that are tried, one in each run.
FOUND_BY: dict[str, Sequence[str]] = {
    "a new start does not wait for the agents of the old one": ["start"],
    "a head that loses a node does not fence its own workers": ["cut"],
    "a lost head is not noticed": ["cut"],
    "the guard has no deadline": ["pause"],
    "a successor does not wait for the lost head": ["cut"],
    "an attempt does not wait for those who fell silent": ["route"],
    "a loss is not counted": ["crash"],
}

SLOWLY_FOUND = (
    *("a successor does not wait for the lost head", "the guard has no deadline"),
    "an attempt does not wait for those who fell silent",
)


@pytest.mark.long
@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(("late",), id="late"),
        pytest.param(
            ("crash", "start"),
            id="crash-start",
            marks=pytest.mark.variant(of="test_each_schedule_of_one_fault_in_two_nodes_keeps_the_rules"),
        ),
    ],
)
def test_each_schedule_of_one_fault_in_two_nodes_keeps_the_rules(kinds: tuple[str, ...]) -> None:
    exploration = Exploration(base(nodes=2), kinds=kinds, grain=SMALL)
    exploration.play()
    assert exploration.broken == []
    assert exploration.is_complete
    assert exploration.runs[0] == 1
    assert exploration.runs[1] >= exploration.states > 30


@pytest.mark.long
@pytest.mark.parametrize(
    "grain", [SMALL, *variants(None, of="test_two_faults_are_placed_in_one_run_if_the_depth_is_two")]
)
def test_two_faults_are_placed_in_one_run_if_the_depth_is_two(grain: float | None) -> None:
    exploration = Exploration(base(nodes=2), depth=2, kinds=("late",), grain=grain, first=300)
    placed = [run.scenario.faults for run in exploration.schedules()]
    pairs = [faults for faults in placed if len(faults) == 2]
    assert len(pairs) == exploration.runs[2] > 0
    assert all(300 <= first.nth <= second.nth for first, second in pairs)
    assert exploration.is_complete


def test_a_placed_fault_strikes_just_before_the_event_of_its_point() -> None:
    passed: list[tuple[int, str, float]] = []
    fault = Fault(what="kill_agent", node=1, phase=POINT, nth=40)
    scenario = base()
    run = SimulatedRun(scenario, visit=lambda point, kind: passed.append((point, kind, run.clock.now)))
    run.play()
    struck = SimulatedRun(replace(scenario, faults=(fault,)))
    struck.play()
    (moment,) = [moment for moment, who, _ in struck.events if who == "fault"]
    assert passed[38][2] <= moment <= passed[40][2]


@pytest.mark.long
@pytest.mark.parametrize(
    "bug",
    [
        *(bug for bug in FOUND_BY if bug not in SLOWLY_FOUND),
        *variants(*SLOWLY_FOUND, of="test_the_exploration_finds_a_planted_bug"),
    ],
)
def test_the_exploration_finds_a_planted_bug(bug: str) -> None:
    exploration = Exploration(base(), kinds=tuple(FOUND_BY[bug]), first=AT_WORK, plant=Planted(bug))
    assert any(exploration.broken for _ in exploration.schedules())


def test_an_exploration_that_has_no_time_left_does_not_call_itself_complete() -> None:
    exploration = Exploration(base(), until=time.monotonic())
    exploration.play()
    assert not exploration.is_complete
    assert "NOT complete" in exploration.summary()


def test_the_tool_prints_what_it_played_and_how_to_play_a_broken_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--minutes", "0"]) == 1
    printed = capsys.readouterr().out
    assert "NOT complete" in printed
    assert "depth 1" in printed
