"""Which of the run's requests concern a head that has just begun, and what they mean to it; pure."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone

from hpc_elastic.membership.notices import NoticeGiven
from hpc_elastic.rundir.records import NOTICE_REASONS, NoticeReason, Request


def standing_notices(requests: Sequence[Request], allocation: int) -> tuple[Request, ...]:
    """Return the notices of an allocation, which its later heads give again: earlier ones are about another end.

    Args:
        requests: all of the run's, in the order of the file.
        allocation: its number. Every allocation but the first begins with its `start` line.
    """
    starts = [place for place, each in enumerate(requests) if each.kind == "start" and each.allocation == allocation]
    if allocation > 1 and not starts:
        return ()
    since = requests[starts[-1] :] if starts else requests
    return tuple(each for each in since if each.kind == "notice" and each.id and each.allocation in (None, allocation))


def aged(request: Request, now: float) -> Request:
    """Return an old notice with the seconds that are left now, in Unix seconds, by the clocks of both machines.

    It is the only time that is known of it. What the clocks differ by makes the seconds wrong, and nothing else.
    """
    if request.seconds_left is None:
        return request
    age_s = 0.0
    with contextlib.suppress(ValueError):
        given = datetime.strptime(request.time, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc)
        age_s = now - given.timestamp()
    return replace(request, seconds_left=min(request.seconds_left, max(0.0, request.seconds_left - age_s)))


def notice_in(request: Request) -> NoticeGiven:
    """Return what a request of kind `notice` says; without a known reason it is an operator's."""
    reason: NoticeReason = next((known for known in NOTICE_REASONS if known == request.reason), "operator")
    left_s = request.seconds_left
    return NoticeGiven(reason=reason, seconds_left=None if left_s is None else max(0.0, left_s), by=request.by)
