"""Which requests concern a new head, and what a notice among them says."""

from __future__ import annotations

import pytest

from hpc_elastic.agent.records.requests import (
    aged,
    is_end_wanted,
    notice_in,
    operator_stop_in,
    standing_notices,
    stop_at_once,
    with_id,
)
from hpc_elastic.membership.notices import NoticeGiven
from hpc_elastic.membership.operator_stop import OperatorStop
from hpc_elastic.rundir.records import NoticeReason, Request, utc_text

NOON = 1_800_000_000.0


def notice(
    name: str = "a",
    *,
    reason: str | None = "preemption",
    left_s: float | None = 90.0,
    allocation: int | None = None,
) -> Request:
    return Request(
        kind="notice",
        by="ada@login",
        time=utc_text(NOON),
        id=name,
        reason=reason,
        seconds_left=left_s,
        allocation=allocation,
    )


def start(allocation: int) -> Request:
    return Request(kind="start", by="node0", time="", allocation=allocation)


def test_the_first_allocations_notices_stand_until_the_second_begins() -> None:
    requests = [notice("a"), Request(kind="stop", by="ada", time="", id="s"), notice("b")]
    assert [each.id for each in standing_notices(requests, 1)] == ["a", "b"]
    later = [*requests, start(2), notice("c")]
    assert [each.id for each in standing_notices(later, 2)] == ["c"]


def test_a_notice_stands_in_all_allocations_of_its_start_and_in_none_of_the_next_start() -> None:
    """The second start has two allocations: its first head was lost before it had opened an attempt."""
    requests = [notice("a"), start(2), notice("b"), start(3), notice("c")]
    assert [each.id for each in standing_notices(requests, 3, beside=[2])] == ["b", "c"]
    later = [*requests, start(4), notice("d")]
    assert [each.id for each in standing_notices(later, 4)] == ["d"]


def test_no_notice_stands_in_an_allocation_whose_begin_is_not_known() -> None:
    assert not standing_notices([notice("a")], 2)


def test_a_notice_of_another_allocation_does_not_stand() -> None:
    assert [each.id for each in standing_notices([notice("a", allocation=2), notice("b", allocation=1)], 1)] == ["b"]


@pytest.mark.parametrize(("later_s", "left_s"), [(0, 90.0), (30, 60.0), (500, 0.0), (-40, 90.0)])
def test_an_old_notice_has_the_seconds_that_are_left_and_never_more_than_it_had(later_s: float, left_s: float) -> None:
    assert aged(notice(), NOON + later_s).seconds_left == left_s


def heard(left_s: float | None, reason: NoticeReason = "preemption") -> NoticeGiven:
    return NoticeGiven(reason=reason, seconds_left=left_s, by="ada@login")


@pytest.mark.parametrize("clocks_differ_s", [-3600.0, 0.0, 3600.0])
def test_the_clock_of_another_machine_does_not_count_if_the_member_has_heard_of_the_notice(
    clocks_differ_s: float,
) -> None:
    now = NOON + 30 + clocks_differ_s
    assert aged(notice(), now, heard(60.0)).seconds_left == 60.0
    assert aged(notice(), now, heard(600.0)).seconds_left == 90.0  # that was another one


@pytest.mark.parametrize("other", [None, heard(None), heard(5.0, "time_limit")])
def test_a_notice_that_the_member_has_not_heard_of_ages_by_both_clocks(other: NoticeGiven | None) -> None:
    assert aged(notice(), NOON + 30, other).seconds_left == 60.0


def test_an_old_notice_without_a_time_keeps_its_seconds() -> None:
    request = Request(kind="notice", by="ada", time="noon", id="a", seconds_left=5.0)
    assert aged(request, NOON).seconds_left == 5.0
    assert aged(notice(left_s=None), NOON).seconds_left is None


@pytest.mark.parametrize(
    ("reason", "told"),
    [("preemption", "preemption"), ("time_limit", "time_limit"), (None, "operator"), ("x", "operator")],
)
def test_an_unknown_reason_is_an_operators(reason: str | None, told: str) -> None:
    given = notice_in(notice(reason=reason))
    assert given == NoticeGiven(reason=told, seconds_left=90.0, by="ada@login")  # type: ignore[arg-type]


def test_a_negative_time_is_none_left() -> None:
    assert notice_in(notice(left_s=-3.0)).seconds_left == 0.0


def stop(
    name: str | None = "s", *, left_s: float | None = 60.0, requeue: bool = False, allocation: int | None = 1
) -> Request:
    return Request(
        kind="stop", by="ada@login", time="noon", id=name, seconds_left=left_s, requeue=requeue, allocation=allocation
    )


@pytest.mark.parametrize("allocation", [1, None])
def test_a_stop_with_notice_stands_in_its_allocation_and_ends_the_run_at_once_in_a_later_one(
    allocation: int | None,
) -> None:
    requests = [stop(allocation=allocation)]
    assert [each.id for each in standing_notices(requests, 1)] == ["s"]
    assert stop_at_once(requests, 1) is None
    later = [*requests, start(2)]
    assert not standing_notices(later, 2)
    assert stop_at_once(later, 2) == "ada@login"
    assert is_end_wanted(later)


def test_a_stop_with_a_requeue_is_about_one_allocation_only() -> None:
    requests = [stop(requeue=True), stop("t", requeue=True, left_s=None)]
    assert [each.id for each in standing_notices(requests, 1)] == ["s", "t"]
    later = [*requests, start(2)]
    assert not standing_notices(later, 2)
    assert [stop_at_once(later, allocation) for allocation in (1, 2)] == [None, None]
    assert not is_end_wanted(later)


def test_a_stop_without_a_time_is_one_at_once() -> None:
    assert stop_at_once([stop(None, left_s=None, allocation=None)], 1) == "ada@login"
    assert not standing_notices([stop(left_s=None)], 1)


def test_an_announced_stop_without_an_id_gets_one_and_other_requests_stay_as_they_are() -> None:
    assert with_id(stop(None)).id == "stop-ada@login-noon"
    for request in (stop(), stop(None, left_s=None), notice()):
        assert with_id(request) == request


def test_an_announced_stop_says_who_when_and_what_for() -> None:
    assert operator_stop_in(stop()) == OperatorStop(by="ada@login", seconds_left=60.0)
    again = operator_stop_in(stop(requeue=True, left_s=None))
    assert again == OperatorStop(by="ada@login", seconds_left=0.0, is_requeue=True)
