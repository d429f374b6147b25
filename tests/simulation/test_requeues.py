"""States that outlive their allocation: the next one begins with the newest step that all of its nodes can have."""

from __future__ import annotations

import pytest

from tests.simulation.draws.requeues import draw_requeues
from tests.simulation.planted.kept import KEPT_BUGS, PlantedKept
from tests.simulation.rules.invariants import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import each_third, parts_of, variants

SEEDS = range(400)
AGAIN_AND_AGAIN = "a damaged file is chosen again and again"  # it takes 20 s to see it
# Where a bug shows that many seeds pass by: it is tried first. What changes the schedules changes these.
SEEN = {"a state is named by another attempt": 110, "checksums of files are ignored": 128, AGAIN_AND_AGAIN: 128}


@pytest.mark.long
@pytest.mark.parametrize("seeds", parts_of(SEEDS, check=4, test=12, of="test_no_rule_is_broken_where_jobs_go_on"))
def test_no_rule_is_broken_where_jobs_go_on(seeds: range) -> None:
    went_on = 0
    for seed in seeds:
        run = SimulatedRun(draw_requeues(seed))
        try:
            run.play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --requeues --seed {seed}`"
            )
        second = [claim for claim in run.disk.claims.values() if claim.allocation == 2]
        went_on += bool(second) and bool(min(second, key=lambda claim: claim.attempt).states)
    assert went_on > len(seeds) / 2, "hardly any allocation began with a state that was kept"


@pytest.mark.long
def test_a_term_may_wait_for_the_record_of_a_failed_worker_on_a_slow_disk() -> None:
    SimulatedRun(draw_requeues(13000104)).play()


def shows(seed: int, bug: str) -> bool:
    try:
        SimulatedRun(draw_requeues(seed), PlantedKept(bug)).play()
    except BrokenRuleError:
        return True
    return False


@pytest.mark.long
@pytest.mark.parametrize(
    "bug",
    [
        *each_third(
            [bug for bug in KEPT_BUGS if bug != AGAIN_AND_AGAIN], of="test_a_planted_bug_of_kept_states_is_found"
        ),
        *variants(AGAIN_AND_AGAIN, of="test_a_planted_bug_of_kept_states_is_found"),
    ],
)
def test_a_planted_bug_of_kept_states_is_found(bug: str) -> None:
    assert any(shows(seed, bug) for seed in (SEEN.get(bug, 2), *SEEDS)), f"no seed of {len(SEEDS)} shows that {bug}"
