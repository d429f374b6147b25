"""Useful and lost time: every second of an allocation is in one span, whatever the records say."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.useful_time.division import (
    AllocationTimes,
    AttemptTimes,
    TimeUse,
    divide,
    totals,
    useful_share,
)

times = st.floats(min_value=-100, max_value=2000)
maybe = st.none() | times
progress = st.lists(st.tuples(times, st.integers(0, 50)), max_size=8).map(sorted).map(tuple)
attempts = st.builds(
    AttemptTimes,
    number=st.integers(1, 9),
    opened=times,
    started=maybe,
    ended=maybe,
    stopped=maybe,
    waited=maybe,
    is_failed=st.booleans(),
    is_stalled=st.booleans(),
    steps=progress,
)
allocations = st.builds(
    AllocationTimes,
    begin=st.floats(0, 500),
    end=st.floats(0, 1500),
    claimed=maybe,
    ending=maybe,
    attempts=st.lists(attempts, max_size=5).map(tuple),
)


@pytest.mark.long
@given(st.lists(allocations, max_size=3), st.booleans())
def test_the_spans_add_up_to_the_whole_allocations_without_gap_or_overlap(
    found: list[AllocationTimes], are_comparable: bool
) -> None:
    spans = divide(found, are_steps_comparable=are_comparable)
    whole = sum(max(0.0, each.end - each.begin) for each in found)
    assert sum(totals(spans).values()) == pytest.approx(whole)
    assert all(span.end > span.begin for span in spans)
    for allocation in found:
        own = divide([allocation])
        assert all(before.end == after.begin for before, after in pairwise(own))
        if own:
            assert (own[0].begin, own[-1].end) == (allocation.begin, allocation.end)


def run_of(*attempts: AttemptTimes, end: float, ending: float | None = None) -> AllocationTimes:
    return AllocationTimes(begin=0, end=end, ending=ending, attempts=attempts)


def test_a_run_that_fails_once_and_repeats_its_steps() -> None:
    """Heartbeats come each 5 s, after steps that take as long."""
    first = ((20.0, 1), (40.0, 5), (95.0, 16))
    second = ((110.0, 11), (115.0, 12), (160.0, 21))
    run = run_of(
        AttemptTimes(number=1, opened=10, started=13, ended=100, is_failed=True, steps=first),
        AttemptTimes(number=2, opened=103, started=104, ended=190, steps=second),
        end=200,
        ending=190,
    )
    assert [(each.begin, each.end, each.use, each.attempt) for each in divide([run])] == [
        (0, 10, TimeUse.WAITING, 0),
        (10, 15, TimeUse.STARTING, 1),
        (15, 95, TimeUse.TRAINING, 1),
        (95, 100, TimeUse.RESTARTING, 1),
        (100, 103, TimeUse.RESTARTING, 1),
        (103, 105, TimeUse.RESTARTING, 2),
        (105, 135, TimeUse.AGAIN, 2),
        (135, 190, TimeUse.TRAINING, 2),
        (190, 200, TimeUse.ENDED, 2),
    ]
    assert useful_share(divide([run])) == pytest.approx((80 + 55) / 200)


def test_steps_are_repeated_in_the_next_allocation_too() -> None:
    before = AttemptTimes(number=1, opened=0, started=0, ended=50, is_failed=True, steps=((1.0, 1), (50.0, 50)))
    after = AttemptTimes(number=2, opened=100, started=100, steps=((101.0, 41), (120.0, 60)))
    runs = [run_of(before, end=50, ending=50), AllocationTimes(begin=100, end=120, attempts=(after,))]
    assert totals(divide(runs))[TimeUse.AGAIN] == pytest.approx(10)


def test_without_steps_nothing_is_called_training_again() -> None:
    run = run_of(
        AttemptTimes(number=1, opened=0, started=1, ended=10),
        AttemptTimes(number=2, opened=11, started=12),
        end=20,
    )
    assert totals(divide([run]))[TimeUse.AGAIN] == 0
    assert totals(divide([run]))[TimeUse.TRAINING] == 17


def test_a_stall_lasts_from_the_last_step() -> None:
    steps = ((1.0, 1), (40.0, 40))
    stalled = AttemptTimes(number=1, opened=0, started=0, ended=100, is_failed=True, is_stalled=True, steps=steps)
    assert totals(divide([run_of(stalled, end=100)]))[TimeUse.STALLED] == 60


def test_an_attempt_whose_head_was_lost_ends_when_the_next_one_is_opened() -> None:
    run = run_of(AttemptTimes(number=1, opened=0, started=0), AttemptTimes(number=2, opened=30, started=35), end=50)
    assert totals(divide([run]))[TimeUse.RESTARTING] == 5


def test_an_attempt_that_repeats_steps_now_does_not_train_yet() -> None:
    run = run_of(
        AttemptTimes(number=1, opened=0, started=0, ended=40, is_failed=True, steps=((1.0, 1), (40.0, 40))),
        AttemptTimes(number=2, opened=40, started=40, steps=((41.0, 1), (50.0, 10))),
        end=52,
    )
    assert totals(divide([run]))[TimeUse.AGAIN] == 12


def test_an_allocation_without_an_attempt_waited_for_nodes() -> None:
    assert totals(divide([AllocationTimes(begin=5, end=25)]))[TimeUse.WAITING] == 20
    assert useful_share([]) is None
