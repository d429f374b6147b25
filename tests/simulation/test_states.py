"""States in memory in simulated runs: all ranks begin with the newest step that all of them hold, or with none."""

from __future__ import annotations

import pytest

from tests.simulation.draws.states import draw_states
from tests.simulation.planted.copies import COPY_BUGS, PlantedCopy
from tests.simulation.planted.states import STATE_BUGS, PlantedState
from tests.simulation.rules.invariants import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of, variants

SEEDS = range(400)
# Where a bug shows that many seeds pass by: it is tried first. What changes the schedules changes this.
COPY_SEEN = {
    "the older copy is given": 23,
    "checksums of copies are ignored": 55,
    "a copy of a world of another size is taken": 21,
    "one place for the copies of a part": 3,
    "what waits for its copy is overwritten": 3,
    "a node is told of all that have a state": 7,
}
SEEN = {
    "a state is given to other ranks than its own": 44,
    "a state that is the same on all ranks of a role is given to another role": 257,
    "a state with which the same failure came again is trusted": 26,
}


@pytest.mark.long
@pytest.mark.parametrize("seeds", parts_of(SEEDS, check=6, test=16, of="test_no_rule_is_broken_where_ranks_save"))
def test_no_rule_is_broken_where_ranks_save(seeds: range) -> None:
    loads = 0
    for seed in seeds:
        run = SimulatedRun(draw_states(seed))
        try:
            run.play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --states --seed {seed}`"
            )
        loads += run.states.loads
    assert loads > len(seeds) / 5, "hardly any attempt began with a state in memory"


@pytest.mark.long
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(104213, id="a welcome that comes when its head was just given up ends no search"),
        pytest.param(106070, id="a loss that such a welcome follows is noted once"),
        pytest.param(102056, id="a head that ends before the others have left leaves no task behind"),
        pytest.param(107556, id="a successor that was told of no attempt counts from when it found the claim"),
        pytest.param(910170, id="a beat that is due as an answer comes does not name it"),
        pytest.param(30461, id="an attempt in vain for a damaged state costs nothing"),
        pytest.param(102044, id="a head that is given up in the turn in which it answers has not taken anybody in"),
        pytest.param(1609022, id="a cut network at the start of workers is no failure of theirs"),
        pytest.param(1600285, id="a role that is done does not run again for a damaged state of another one"),
        pytest.param(1601128, id="an attempt in vain for a damaged state is followed by another one at once"),
        pytest.param(20000373, id="an attempt in vain costs nothing though another role has begun again since"),
        pytest.param(1600178, id="an answer from before a head was joined again is none"),
        pytest.param(2600721, id="a run that ends for one role stops the others before its result is written"),
        pytest.param(2601158, id="the restart of one role gives ranks of another one no more time to end"),
        pytest.param(2601852, id="the process ids of workers that have ended meanwhile are recorded"),
        pytest.param(2604973, id="a failure while the workers stop for a damaged state costs nothing"),
        pytest.param(2606200, id="a member that stands still as its head dies is lost to a spare that takes over"),
        pytest.param(2603880, id="what a head says that was given up is no contact"),
        pytest.param(9122480, id="an attempt that starts no workers has no failures of the one before"),
        pytest.param(9110665, id="a join that its agent has given up is not taken in"),
        pytest.param(6106222, id="a head that is slow to answer a join is waited for"),
        pytest.param(9216825, id="an agent that dies as the run ends is not the only one that ends the job"),
        pytest.param(6208412, id="who is refused by a first head of another version leaves for that"),
    ],
)
def test_a_schedule_that_broke_a_rule_breaks_none_any_more(seed: int) -> None:
    SimulatedRun(draw_states(seed)).play()


def shows(seed: int, bug: str) -> bool:
    try:
        SimulatedRun(draw_states(seed), PlantedState(bug)).play()
    except BrokenRuleError:
        return True
    return False


@pytest.mark.long
@pytest.mark.parametrize(
    "bug", [*[*COPY_BUGS][:3], *variants(*[*COPY_BUGS][3:], of="test_a_planted_bug_of_copies_is_found")]
)
def test_a_planted_bug_of_copies_is_found(bug: str) -> None:
    seeds = (COPY_SEEN.get(bug, 0), *SEEDS)
    assert any(shows_copied(seed, bug) for seed in seeds), f"no seed of {len(SEEDS)} shows that {bug}"


def shows_copied(seed: int, bug: str) -> bool:
    scenario = draw_states(seed)
    if scenario.copy_s is None:
        return False
    try:
        SimulatedRun(scenario, PlantedCopy(bug)).play()
    except BrokenRuleError:
        return True
    return False


@pytest.mark.long
@pytest.mark.parametrize(
    "bug", [*[*STATE_BUGS][:3], *variants(*[*STATE_BUGS][3:], of="test_a_planted_bug_of_states_is_found")]
)
def test_a_planted_bug_of_states_is_found(bug: str) -> None:
    assert any(shows(seed, bug) for seed in (SEEN.get(bug, 6), *SEEDS)), f"no seed of {len(SEEDS)} shows that {bug}"
