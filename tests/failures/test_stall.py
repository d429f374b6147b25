"""Which ranks have stalled, in which order they stopped, and which ones are slow."""

from __future__ import annotations

import pytest

from hpc_elastic.failures.stall import HeartbeatState, StallLimits, StepSample, find_behind, find_stalled

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


def samples(rank: int, rate: float, *, node: str = "node0", start: int = 0, seconds: int = 60) -> list[StepSample]:
    return [
        StepSample(rank=rank, node=node, time_s=100 + time, step=start + int(rate * time))
        for time in range(0, seconds + 1, 10)
    ]


def test_a_rank_that_makes_fewer_steps_is_slow_and_how_far_it_is_behind_is_said() -> None:
    found = find_behind([*samples(0, 2), *samples(1, 2), *samples(2, 1, node="node1"), *samples(3, 2)])
    assert [(slow.rank, slow.node, slow.behind, slow.rate, slow.usual_rate) for slow in found] == [
        (2, "node1", 60, 1.0, 2.0)
    ]


def test_ranks_in_lockstep_are_not_slow_wherever_they_were_sampled() -> None:
    late = [StepSample(rank=1, node="n", time_s=sample.time_s + 5, step=sample.step + 10) for sample in samples(1, 2)]
    assert find_behind([*samples(0, 2), *late, *samples(2, 2)]) == ()


@pytest.mark.parametrize("count", [0, 1])
def test_one_rank_alone_is_not_slow(count: int) -> None:
    assert find_behind(samples(0, 1)[: 7 * count]) == ()


def test_few_steps_say_nothing() -> None:
    assert find_behind([*samples(0, 0.06), *samples(1, 0.06), *samples(2, 0.01)]) == ()


def test_a_rank_that_resumed_from_an_older_step_is_not_slow_while_it_catches_up() -> None:
    assert find_behind([*samples(0, 2, start=100), *samples(1, 2, start=50), *samples(2, 2, start=100)]) == ()
