"""Notices in simulated runs: the n-th poll has the same answer on all ranks that share a store."""

from __future__ import annotations

import pytest

from tests.simulation.draws.notices import draw_notices
from tests.simulation.planted.notices import NOTICE_BUGS, PlantedNotice
from tests.simulation.rules.invariants import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import each_third, parts_of

SEEDS = range(400)
SEEN = {
    "the counts are read at once": 203,
    "a second notice is agreed on again": 15,
}  # tried first; what changes the schedules changes this


@pytest.mark.long
@pytest.mark.parametrize(
    "seeds", parts_of(SEEDS, check=4, test=12, of="test_no_rule_is_broken_where_notices_are_given")
)
def test_no_rule_is_broken_where_notices_are_given(seeds: range) -> None:
    heard = 0
    for seed in seeds:
        run = SimulatedRun(draw_notices(seed))
        try:
            run.play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --notices --seed {seed}`"
            )
        heard += run.polls.have_heard
    assert heard > len(seeds) / 5, "the notices came when nobody asked"


def test_a_later_head_tells_its_members_of_the_notice_again() -> None:
    """With the seconds that are left then, as `polls` has required; some seeds lose their heads after a notice."""
    assert any(_retold(seed) for seed in (9, *SEEDS))


def _retold(seed: int) -> int:
    run = SimulatedRun(draw_notices(seed))
    run.play()
    return run.polls.retold


def shows(seed: int, bug: str) -> bool:
    try:
        SimulatedRun(draw_notices(seed), PlantedNotice(bug)).play()
    except BrokenRuleError as error:
        return any(words in str(error) for words in ("asks for a notice", "are named otherwise than polls", "hears at"))
    return False


@pytest.mark.long
@pytest.mark.parametrize("bug", each_third(NOTICE_BUGS, of="test_a_planted_bug_of_notices_is_found"))
def test_a_planted_bug_of_notices_is_found(bug: str) -> None:
    assert any(shows(seed, bug) for seed in (SEEN.get(bug, 0), *SEEDS)), f"no seed of {len(SEEDS)} shows that {bug}"
