"""People's requests in simulated runs: a restart, a drain and an announced stop are carried out, and soon."""

from __future__ import annotations

import pytest

from tests.simulation.draw_requests import draw_requests
from tests.simulation.planted_requests import REQUEST_BUGS, PlantedRequests
from tests.simulation.rules import BrokenRuleError
from tests.simulation.world import SimulatedRun
from tests.tiers import parts_of

SEEDS = range(400)
WORDS = ("a person asked for", "a person has drained", "that was announced")


@pytest.mark.long
@pytest.mark.parametrize(
    "seeds", parts_of(SEEDS, check=50, test=70, of="test_no_rule_is_broken_where_a_person_asks_for_something")
)
def test_no_rule_is_broken_where_a_person_asks_for_something(seeds: range) -> None:
    for seed in seeds:
        try:
            SimulatedRun(draw_requests(seed)).play()
        except BrokenRuleError as error:
            pytest.fail(
                f"seed {seed}: {error}; play it again with `python -m tests.simulation -v --requests --seed {seed}`"
            )


def shows(seed: int, bug: str) -> bool:
    try:
        SimulatedRun(draw_requests(seed), PlantedRequests(bug)).play()
    except BrokenRuleError as error:
        return any(words in str(error) for words in WORDS)
    return False


@pytest.mark.long
@pytest.mark.parametrize("bug", REQUEST_BUGS)
def test_a_planted_bug_of_requests_is_found(bug: str) -> None:
    assert any(shows(seed, bug) for seed in SEEDS), f"no seed of {len(SEEDS)} shows that {bug}"
