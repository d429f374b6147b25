"""Who is behind, from steps that were seen at different moments."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.failures.pace import Pace, SlowRank, falls_behind, find_pace
from hpc_elastic.rundir.sample_tail import RankSeen


def see(rank: int, *sightings: tuple[float, int]) -> list[RankSeen]:
    return [RankSeen(rank=rank, node=f"n{rank}", step=step, at=at) for at, step in sightings]


def test_the_rank_that_goes_slower_is_named_with_its_distance() -> None:
    seen = [each for rank in range(7) for each in see(rank, (0, 100), (10, 200))] + see(7, (0, 90), (10, 150))
    pace = find_pace(seen)
    assert (pace.step, pace.rate) == (200, 10.0)
    assert [(each.rank, each.behind) for each in pace.slow] == [(7, 50.0)]


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


def run_on(rank: int, rate: float, *, start: int = 0) -> list[RankSeen]:
    return see(rank, *((100 + time, start + int(rate * time)) for time in range(0, 61, 10)))


def falling(*seen: list[RankSeen]) -> tuple[SlowRank, ...]:
    return falls_behind(find_pace([each for of in seen for each in of]))


def test_a_rank_that_makes_fewer_steps_falls_behind() -> None:
    (slow,) = falling(run_on(0, 2), run_on(1, 2), run_on(2, 1), run_on(3, 2))
    assert (slow.rank, slow.node, slow.behind, slow.rate) == (2, "n2", 60, 1.0)


def test_a_rank_that_resumed_from_an_older_step_is_behind_and_does_not_fall_behind() -> None:
    seen = [run_on(0, 2, start=100), run_on(1, 2, start=50), run_on(2, 2, start=100)]
    assert [each.rank for each in find_pace([each for of in seen for each in of]).slow] == [1]
    assert falling(*seen) == ()


def test_of_few_steps_none_falls_behind() -> None:
    assert falling(run_on(0, 0.06), run_on(1, 0.06), run_on(2, 0.01)) == ()


def test_one_rank_alone_does_not_fall_behind() -> None:
    assert falling(run_on(0, 1)) == ()


def test_a_rank_whose_steps_begin_anew_with_an_epoch_is_not_behind() -> None:
    ahead = see(
        0, (0, 20), (10, 0)
    )  # in the first step of an epoch; the others are in the last one of the epoch before
    assert find_pace([*ahead, *see(1, (0, 19), (10, 39)), *see(2, (0, 19), (10, 39))]).slow == ()


def test_steps_that_begin_anew_with_an_epoch_still_have_a_rate() -> None:
    seen = [each for rank in range(4) for each in see(rank, (0, 30), (10, 10))]
    assert find_pace(seen).rate != 0
