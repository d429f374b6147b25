"""Who is behind, from steps that were seen at different moments."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.observe.slow_ranks import Pace, RankSeen, describe_pace, describe_slow, find_pace


def see(rank: int, *sightings: tuple[float, int]) -> list[RankSeen]:
    return [RankSeen(rank=rank, node=f"n{rank}", step=step, at=at) for at, step in sightings]


def test_the_rank_that_goes_slower_is_named_with_its_distance() -> None:
    seen = [each for rank in range(7) for each in see(rank, (0, 100), (10, 200))] + see(7, (0, 90), (10, 150))
    pace = find_pace(seen)
    assert (pace.step, pace.rate) == (200, 10.0)
    assert [(each.rank, each.behind) for each in pace.slow] == [(7, 50.0)]
    assert describe_slow(pace) == "rank 7 on n7: 50 steps behind the median, at 150"
    assert describe_pace(pace) == "200, 10 a second"


@given(
    rate=st.floats(0.01, 500), lags=st.lists(st.floats(0, 10), min_size=2, max_size=30), base=st.integers(100, 10**6)
)
def test_ranks_of_one_speed_are_never_slow_however_far_their_samples_are_apart(
    rate: float, lags: list[float], base: int
) -> None:
    seen = [
        each
        for rank, lag in enumerate(lags)
        for each in see(rank, (1000 - lag, base + int(rate * (0 - lag))), (1010 - lag, base + int(rate * (10 - lag))))
    ]
    assert find_pace(seen).slow == ()


def test_ranks_that_wait_for_each_other_differ_by_one_step_and_none_is_slow() -> None:
    assert find_pace([*see(0, (0, 4), (10, 5)), *see(1, (0, 4), (10, 5)), *see(2, (0, 3), (10, 4))]).slow == ()


def test_without_a_rate_samples_of_different_moments_are_not_compared() -> None:
    assert find_pace([*see(0, (0, 4)), *see(1, (9, 400)), *see(2, (9, 400))]).slow == ()
    assert [each.rank for each in find_pace([*see(0, (9, 4)), *see(1, (9, 40)), *see(2, (9, 40))]).slow] == [0]


def test_nothing_seen_says_nothing() -> None:
    assert find_pace([]) == Pace()
    assert describe_pace(Pace()) == describe_slow(Pace()) == ""


def test_a_slow_run_counts_the_seconds_of_a_step() -> None:
    assert describe_pace(Pace(step=3, rate=0.1)) == "3, one in 10 s"
