"""Which ranks have stalled, in which order they stopped, and which ones are slow."""

from __future__ import annotations

import pytest

from hpc_elastic.failures.stall import HeartbeatState, StallLimits, find_stalled

LIMITS = StallLimits(stall_s=10, first_s=None)
BOTH = StallLimits(stall_s=10, first_s=60)


def beats(step: int | None, age_s: float) -> HeartbeatState:
    return HeartbeatState(step=step, age_s=age_s, count=1)


SILENT = HeartbeatState(step=None, age_s=None, count=0)


def test_a_rank_stalls_when_its_heartbeat_is_older_than_the_bound() -> None:
    states = {0: beats(7, 10.0), 1: beats(7, 10.1)}
    assert [rank.rank for rank in find_stalled(states, LIMITS, watched_s=100)] == [1]


def test_a_rank_that_never_beats_is_left_alone_without_a_bound_for_the_first_heartbeat() -> None:
    assert find_stalled({0: SILENT, 1: beats(7, 1)}, LIMITS, watched_s=10_000) == ()


@pytest.mark.parametrize(("watched_s", "expected"), [(60, []), (60.5, [0])])
def test_the_first_heartbeat_has_a_bound_of_its_own(watched_s: float, expected: list[int]) -> None:
    assert [rank.rank for rank in find_stalled({0: SILENT}, BOTH, watched_s=watched_s)] == expected


def test_an_agent_that_was_paused_does_not_call_its_ranks_stalled() -> None:
    assert find_stalled({0: beats(7, 500), 1: SILENT}, BOTH, watched_s=3) == ()
    assert [rank.rank for rank in find_stalled({0: beats(7, 500)}, BOTH, watched_s=10.5)] == [0]


def test_those_that_stopped_first_come_first() -> None:
    states = {0: beats(8, 20), 1: beats(7, 21), 2: beats(7, 25), 3: SILENT, 4: beats(None, 22)}
    assert [rank.rank for rank in find_stalled(states, BOTH, watched_s=100)] == [3, 4, 2, 1, 0]


def test_a_stalled_rank_is_described() -> None:
    found = find_stalled({0: beats(8, 20), 1: SILENT, 2: beats(None, 20)}, BOTH, watched_s=100)
    assert {rank.rank: rank.describe() for rank in found} == {
        0: "no heartbeat for 20 s after step 8",
        1: "no first heartbeat for 100 s",
        2: "no heartbeat for 20 s",
    }


def test_a_rank_that_saves_stalls_only_after_ten_times_its_bound() -> None:
    saving = {0: HeartbeatState(step=3, age_s=49.0, count=4, is_saving=True)}
    limits = StallLimits(stall_s=5, first_s=None)
    assert not find_stalled(saving, limits, watched_s=1000)
    late = {0: HeartbeatState(step=3, age_s=51.0, count=4, is_saving=True)}
    assert [each.rank for each in find_stalled(late, limits, watched_s=1000)] == [0]
