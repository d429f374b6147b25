"""The simulation can fail: it finds each of the bugs that are planted for it, and makes the schedule small."""

from __future__ import annotations

import pytest

from tests.simulation.__main__ import main
from tests.simulation.draws.general import draw
from tests.simulation.draws.machines import draw_machines
from tests.simulation.draws.starts import draw_second_start
from tests.simulation.planted.machines import BUGS, Planted
from tests.simulation.rules.invariants import BrokenRuleError
from tests.simulation.scenario import HEAD, Fault, Role, Scenario
from tests.simulation.shrink import fails, shrink
from tests.simulation.story import FAULT_SENTENCES, tell
from tests.simulation.world import SimulatedRun, play
from tests.tiers import variants

SEEDS = range(2000)
EACH_THIRD = [*BUGS][::3]
# Where some bugs show that many seeds pass by: they are tried first. What changes the schedules changes these.
SEEN = {
    "a failure in one role stops all": 58,
    "a loss is counted twice": 55,
    "a member's lease is longer than the head's": 63,
    "a partial restart stops nobody": 37,
    "a result is written without a look at the claims": 1211,
    "a stop request is passed over": 1140,
    "a successor does not wait for the lost head": 57,
    "a successor forgets what is spent": 59,
    "a successor without everybody waits for one lease only": 601,
    "a widened restart forgets the first role": 1480,
    "an assignment counts however late it comes": 35,
    "an attempt does not wait for those who fell silent": 61,
    "reports of an older attempt count": 1496,
    "the answer to a claim is not looked at": 215,
    "the guard has no deadline": 239,
    "the store of an older attempt is served again": 21,
    "the head's lease counts from receipt": 57,
    "a restart costs nothing": 21,
    "there is no pause before a restart": 101,
    "too few nodes end a run that is not theirs": 184,
}


def first_seed(bug: str) -> int:
    seeds: list[int] = [SEEN.get(bug, 0), *SEEDS]
    for seed in seeds:
        if fails(draw(seed), Planted(bug)):
            return seed
    raise AssertionError(f"no seed of {len(SEEDS)} shows that {bug}")


@pytest.mark.long
@pytest.mark.parametrize(
    "bug", [*EACH_THIRD, *variants(*(bug for bug in BUGS if bug not in EACH_THIRD), of="test_a_planted_bug_is_found")]
)
def test_a_planted_bug_is_found(bug: str) -> None:
    with pytest.raises(BrokenRuleError):
        play(first_seed(bug), Planted(bug))


@pytest.mark.variant(of="test_the_tool_shrinks_a_seed")
@pytest.mark.long
def test_a_failing_schedule_is_made_smaller_as_long_as_it_fails() -> None:
    plant = Planted("a failure in one role stops all")
    scenario = draw(first_seed("a failure in one role stops all"))
    smaller = shrink(scenario, plant)
    assert fails(smaller, plant)
    assert len(smaller.faults) <= len(scenario.faults)
    assert not any(fails(smaller.without(fault), plant) for fault in smaller.faults), "no fault is there for nothing"


def test_a_schedule_that_breaks_no_rule_is_not_shrunk() -> None:
    with pytest.raises(ValueError, match="nothing to shrink"):
        shrink(draw(0))


def test_a_scenario_is_a_value_that_can_be_pasted() -> None:
    from tests.simulation import scenario as names

    drawn = draw(3)
    assert eval(repr(drawn), vars(names)) == drawn
    assert SimulatedRun(drawn).scenario == drawn


@pytest.mark.long
def test_the_tool_prints_how_to_play_a_failing_seed_again(capsys: pytest.CaptureFixture[str]) -> None:
    plant = Planted("Started comes before the processes")
    assert main(["--count", "3"], plant) == 1
    assert "python -m tests.simulation -v --seed 0" in capsys.readouterr().out


def test_the_tool_prints_the_schedule_and_with_v_each_event(capsys: pytest.CaptureFixture[str]) -> None:
    plant = Planted("Started comes before the processes")
    assert main(["--seed", "0", "-v"], plant) == 1
    printed = capsys.readouterr().out
    assert "Role(name='trainer'" in printed
    assert "StartWorkers(" in printed
    assert "broken: BrokenRuleError: node0 says that its workers run, and there are none" in printed


@pytest.mark.long
def test_the_tool_shrinks_a_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--shrink", "0"], Planted("Started comes before the processes")) == 1
    assert capsys.readouterr().out.startswith("Scenario(seed=0, ")


def test_a_run_is_told_in_sentences_in_their_order() -> None:
    trainer = Role(name="trainer", restart="restart_all", nodes_min=2, nodes_max=3, workers=(1,), work_s=30.0)
    killed = Fault(what="kill_agent", node=HEAD, at=20.0)
    run = SimulatedRun(Scenario(seed=1, roles=(trainer,), nodes=3, faults=(killed,)))
    run.play()
    told = "\n".join(tell(run))
    places = [
        told.index(sentence)
        for sentence in (
            "3 nodes, 2 to 3 in a world, a lease of 10 s",
            "node0 is head and claims attempt 1 with node0, node1 and node2",
            "FAULT: the agent on the head's node is killed",
            "node1 and node2 kill the workers of attempt 1",
            "node1 is head and claims attempt 2 with node1 and node2",
            "result: SUCCEEDED, exit code 0: every rank exited 0",
        )
    ]
    assert places == sorted(places), told
    assert "Echo" not in told


def test_every_fault_that_is_drawn_has_a_sentence() -> None:
    drawn = {
        fault.what
        for make in (draw, draw_second_start, draw_machines)
        for seed in range(300)
        for fault in make(seed).faults
    }
    assert drawn <= FAULT_SENTENCES.keys()


@pytest.mark.long
def test_the_tool_counts_the_ways_to_end(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--first", "10", "--count", "5"]) == 0
    printed = capsys.readouterr().out
    assert "succeeded" in printed
    assert "5 runs, 0 broke a rule" in printed
