"""Notices in simulated runs: the n-th poll has the same answer on all ranks that share a store."""

from __future__ import annotations

import pytest

from tests.simulation.draw_notices import draw_notices
from tests.simulation.planted_notices import NOTICE_BUGS, PlantedNotice
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun

SEEDS = range(400)
PART = 50


@pytest.mark.parametrize(
    "first", [pytest.param(first, marks=[pytest.mark.long] * (first > 0)) for first in range(0, len(SEEDS), PART)]
)
def test_no_rule_is_broken_where_notices_are_given(first: int) -> None:
    heard = 0
    for seed in SEEDS[first : first + PART]:
        run = SimulatedRun(draw_notices(seed))
        try:
            run.play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --notices --seed {seed}`"
            )
        heard += run.polls.have_heard
    assert heard > PART / 5, "the notices came when nobody asked"


def shows(seed: int, bug: str) -> bool:
    try:
        SimulatedRun(draw_notices(seed), PlantedNotice(bug)).play()
    except BrokenRuleError as error:
        return "asks for a notice" in str(error)
    return False


@pytest.mark.parametrize("bug", NOTICE_BUGS)
def test_a_planted_bug_of_notices_is_found(bug: str) -> None:
    assert any(shows(seed, bug) for seed in SEEDS), f"no seed of {len(SEEDS)} shows that {bug}"
