"""The pace of a run, and its slowest rank, in words."""

from __future__ import annotations

from hpc_elastic.failures.pace import Pace, SlowRank
from hpc_elastic.observe.slow_ranks import describe_pace, describe_slow


def test_the_slowest_rank_is_named_with_its_distance() -> None:
    slow = SlowRank(rank=7, node="n7", step=150, behind=50.0, age_s=0.0)
    pace = Pace(step=200, rate=10.0, slow=(slow,))
    assert describe_slow(pace) == "rank 7 on n7: 50 steps behind the median, at 150"
    assert describe_pace(pace) == "200, 10 a second"


def test_without_a_step_nothing_is_said() -> None:
    assert describe_pace(Pace()) == describe_slow(Pace()) == ""


def test_a_slow_run_counts_the_seconds_of_a_step() -> None:
    assert describe_pace(Pace(step=3, rate=0.1)) == "3, one in 10 s"
