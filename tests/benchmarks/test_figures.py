"""The benchmarks' statistics."""

from __future__ import annotations

import random

import pytest

from benchmarks.figures import Ratio, percentile, ratio_of_medians, summary, tail


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(number) for number in range(100, 0, -1)]
    assert percentile(values, 0.99) == 99
    assert percentile(values, 0.5) == 50
    assert percentile(values, 0.0) == 1
    assert percentile([3.0], 0.99) == 3


def test_percentile_rejects_no_values() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_a_summary_has_a_p99_only_if_there_are_enough_values() -> None:
    few = summary([0.1, 0.2, 0.4])
    assert few == {"n": 3, "median": 0.2, "p99": None, "least": 0.1, "most": 0.4}
    assert tail(few) == 0.4
    many = summary([float(number) for number in range(1, 201)])
    assert (many["p99"], many["most"], tail(many)) == (198, 200, 198)


def test_a_summary_of_nothing_says_so() -> None:
    assert summary([]) == {"n": 0, "median": None, "p99": None, "least": None, "most": None}
    assert tail(summary([])) is None


def test_the_ratio_of_constants_is_certain() -> None:
    assert ratio_of_medians([[1.0]] * 4, [[4.0]] * 4, resamples=50) == Ratio(0.25, 0.25, 0.25)


@pytest.mark.long
def test_the_interval_of_a_ratio_holds_the_true_one_about_as_often_as_it_says() -> None:
    source = random.Random(1)
    hits = 0
    for _ in range(100):
        above = [[source.gauss(2, 0.3)] for _ in range(20)]
        below = [[source.gauss(8, 0.3)] for _ in range(20)]
        found = ratio_of_medians(above, below, resamples=200)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        assert found.low <= found.value <= found.high
        hits += found.low <= 0.25 <= found.high
    assert 85 <= hits < 100


def test_values_of_one_turn_do_not_count_as_independent() -> None:
    """Ten values of each of four turns, far apart: the interval reaches from the one half of them to the other."""
    found = ratio_of_medians([[1.0] * 10, [3.0] * 10] * 2, [[1.0]] * 4, resamples=400)
    assert found is not None
    assert (found.low, found.high) == (1.0, 3.0)


def test_a_pair_is_drawn_together() -> None:
    """In a slow turn both are slow: the ratio is certain although neither median is."""
    found = ratio_of_medians([[1.0], [5.0], [9.0], [11.0]], [[2.0], [10.0], [18.0], [22.0]], resamples=200)
    assert found == Ratio(0.5, 0.5, 0.5)


def test_the_ratio_goes_without_turns_in_which_one_did_not_take_part() -> None:
    found = ratio_of_medians([[1.0]] * 6, [*[[2.0]] * 4, [], []], resamples=200)
    assert found == Ratio(0.5, 0.5, 0.5)
    assert ratio_of_medians([[1.0]], [[]]) is None


def test_few_turns_have_no_interval() -> None:
    found = ratio_of_medians([[1.0], [1.5], [2.0]], [[4.0], [4.0], [4.0]])
    assert (found, str(found)) == (Ratio(0.375), "0.375")
    assert ratio_of_medians([[1.0]] * 9, [*[[2.0]] * 3, *[[]] * 6]) == Ratio(0.5)


def test_the_same_values_give_the_same_interval() -> None:
    above, below = [[1.0], [2.0], [4.0], [3.0]], [[5.0], [9.0], [6.0], [5.0]]
    assert ratio_of_medians(above, below, resamples=100) == ratio_of_medians(above, below, resamples=100)
