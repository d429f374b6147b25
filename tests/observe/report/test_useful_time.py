"""Useful and lost time: every second of an allocation is in one span, whatever the records say."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.observe.report.useful_time import (
    AllocationTimes,
    AttemptTimes,
    TimeUse,
    divide,
    totals,
    useful_share,
)

times = st.floats(min_value=-100, max_value=2000)
maybe = st.none() | times
attempts = st.builds(AttemptTimes, number=st.integers(1, 9), opened=times, started=maybe, failed=maybe, stalled=maybe)
allocations = st.builds(
    AllocationTimes,
    begin=st.floats(0, 500),
    end=st.floats(0, 1500),
    attempts=st.lists(attempts, max_size=5).map(tuple),
)
progress = st.lists(st.tuples(times, st.integers(0, 50)), max_size=8).map(sorted)


@given(st.lists(allocations, max_size=3), progress)
def test_the_spans_add_up_to_the_whole_allocations_without_gap_or_overlap(
    found: list[AllocationTimes], steps: list[tuple[float, int]]
) -> None:
    spans = divide(found, steps)
    whole = sum(max(0.0, each.end - each.begin) for each in found)
    assert sum(totals(spans).values()) == pytest.approx(whole)
    assert all(span.end > span.begin for span in spans)
    for allocation in found:
        own = divide([allocation], steps)
        assert all(before.end == after.begin for before, after in pairwise(own))
        if own:
            assert (own[0].begin, own[-1].end) == (allocation.begin, allocation.end)


def test_a_run_that_fails_once_and_repeats_its_steps() -> None:
    run = AllocationTimes(
        begin=0,
        end=200,
        attempts=(
            AttemptTimes(number=1, opened=10, started=15, failed=100),
            AttemptTimes(number=2, opened=103, started=105, failed=190),
        ),
    )
    steps = [(20.0, 1), (60.0, 5), (95.0, 8), (110.0, 5), (130.0, 8), (135.0, 9), (180.0, 12)]
    assert [(each.begin, each.end, each.use, each.attempt) for each in divide([run], steps)] == [
        (0, 10, TimeUse.WAITING, 0),
        (10, 15, TimeUse.STARTING, 1),
        (15, 100, TimeUse.TRAINING, 1),
        (100, 103, TimeUse.RESTARTING, 1),
        (103, 105, TimeUse.RESTARTING, 2),
        (105, 135, TimeUse.AGAIN, 2),
        (135, 190, TimeUse.TRAINING, 2),
        (190, 200, TimeUse.ENDED, 2),
    ]
    assert useful_share(divide([run], steps)) == pytest.approx((85 + 55) / 200)


def test_without_steps_nothing_is_called_training_again() -> None:
    run = AllocationTimes(
        begin=0,
        end=20,
        attempts=(
            AttemptTimes(number=1, opened=0, started=1, failed=10),
            AttemptTimes(number=2, opened=11, started=12),
        ),
    )
    assert totals(divide([run]))[TimeUse.AGAIN] == 0
    assert totals(divide([run]))[TimeUse.TRAINING] == 17


def test_a_stall_lasts_from_the_last_sign_of_progress() -> None:
    run = AllocationTimes(
        begin=0, end=100, attempts=(AttemptTimes(number=1, opened=0, started=0, stalled=40, failed=100),)
    )
    assert totals(divide([run]))[TimeUse.STALLED] == 60


def test_an_attempt_whose_head_was_lost_ends_when_the_next_one_is_opened() -> None:
    run = AllocationTimes(
        begin=0,
        end=50,
        attempts=(AttemptTimes(number=1, opened=0, started=0), AttemptTimes(number=2, opened=30, started=35)),
    )
    assert totals(divide([run]))[TimeUse.RESTARTING] == 5


def test_an_allocation_without_an_attempt_waited_for_nodes() -> None:
    assert totals(divide([AllocationTimes(begin=5, end=25)]))[TimeUse.WAITING] == 20
    assert useful_share([]) is None
