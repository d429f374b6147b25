"""The draws of the campaign of notices, and what it is there to see: `make soak-notices` plays them."""

from __future__ import annotations

import pytest

from hpc_elastic.rundir.records import NOTICE_REASONS
from tests.integration.conftest import Door
from tests.soak.notices import MOST_DELAY_S, RANKS, Notice, play, what_is_wrong


@pytest.mark.local
@pytest.mark.variant(of="test_all_ranks_save_together_and_the_run_stops_at_once")
def test_eight_ranks_of_four_nodes_save_together(door: Door) -> None:
    assert play(door, 0) == ""


def test_a_seed_draws_the_same_notice_again_and_all_kinds_are_drawn() -> None:
    assert Notice.draw(7) == Notice.draw(7)
    drawn = [Notice.draw(seed) for seed in range(200)]
    assert {notice.reason for notice in drawn} == set(NOTICE_REASONS)
    assert {notice.after for notice in drawn} == {1, len(RANKS)}
    assert {notice.again_s is None for notice in drawn} == {True, False}
    assert max(notice.delay_s for notice in drawn) <= MOST_DELAY_S


ENDED = {"restarts": 0, "attempts": 1, "reason": "notice_taken", "cause": "ranks 0-7 exited 75"}
SAID = ["ready", "called alike", "saved for operator alike"]


@pytest.mark.parametrize(
    ("ended", "said", "wrong"),
    [
        ({}, [SAID] * 8, ""),
        ({"reason": "stop_requested"}, [SAID] * 8, "ended otherwise"),
        ({"restarts": 1}, [SAID] * 8, "ended otherwise"),
        ({}, [SAID] * 7 + [SAID[:1]], "the ranks did not do the same"),
        ({}, [["ready", "saved for operator NOT ALIKE: {3, 4}"]] * 8, "not what was to be done"),
    ],
)
def test_a_save_that_is_not_one_of_all_is_seen(ended: dict[str, object], said: list[list[str]], wrong: str) -> None:
    found = what_is_wrong({**ENDED, **ended}, said, "operator")
    assert found.startswith(wrong)
    assert bool(found) == bool(wrong)
