"""Reads the run's requests; which of them concern a head that has just begun, and what they mean to it."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone

from hpc_elastic.codec import DecodeError, from_json
from hpc_elastic.membership.notices import NoticeGiven
from hpc_elastic.membership.operator_stop import OperatorStop
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import NOTICE_REASONS, NoticeReason, Request
from hpc_elastic.rundir.store import read_lines


def read_requests(layout: RunLayout) -> Iterator[Request]:
    """Yield the run's requests in the order of the file; leave out lines that are none.

    Raises:
        RunDirectoryError: the file cannot be read.
    """
    for line in read_lines(layout.requests):
        with contextlib.suppress(DecodeError):
            yield from_json(Request, line)


def standing_notices(requests: Sequence[Request], allocation: int, beside: Collection[int] = ()) -> tuple[Request, ...]:
    """Return the notices and announced stops of an allocation, which its later heads act on as well.

    Earlier ones are about another end.

    Args:
        requests: all of the run's, in the order of the file.
        allocation: its number.
        beside: those of the same start of the job, of which people may name any. Every start but the run's first has a
            `start` line of its first allocation before what names none; each further claim adds it again.
    """
    here = {allocation, *beside}
    first = min(here)
    starts = (place for place, each in enumerate(requests) if each.kind == "start" and each.allocation == first)
    begin = next(starts, len(requests) if first > 1 else 0)
    of_here = (
        each
        for place, each in enumerate(requests)
        if each.allocation in here or (each.allocation is None and place >= begin)
    )
    return tuple(each for each in of_here if each.id and (each.kind == "notice" or is_announced(each)))


def is_announced(request: Request) -> bool:
    """Return whether a request asks for a stop with notice, or for the end of one allocation only."""
    return request.kind == "stop" and (request.seconds_left is not None or request.requeue)


def stop_at_once(requests: Sequence[Request], allocation: int, beside: Collection[int] = ()) -> str | None:
    """Return who asked to end the run at once, None if nobody did.

    That is also who had announced the end of the run in another allocation, which ended before.
    """
    standing = standing_notices(requests, allocation, beside)
    asked = (each for each in requests if each.kind == "stop" and not each.requeue)
    return next((each.by for each in asked if each not in standing), None)


def is_end_wanted(requests: Sequence[Request]) -> bool:
    """Return whether a person has asked for the end of the run, at once or with notice."""
    return any(each.kind == "stop" and not each.requeue for each in requests)


def with_id(request: Request) -> Request:
    """Return an announced stop with an id, which a person who writes the line by hand may leave out."""
    is_without = is_announced(request) and not request.id
    return replace(request, id=f"stop-{request.by}-{request.time}") if is_without else request


def operator_stop_in(request: Request) -> OperatorStop:
    """Return what an announced stop says; without a time the workers are stopped at once."""
    left_s = max(0.0, request.seconds_left or 0.0)
    return OperatorStop(by=request.by, seconds_left=left_s, is_requeue=request.requeue)


def aged(request: Request, now: float, heard: NoticeGiven | None = None) -> Request:
    """Return an old notice or announced stop with the seconds that are left now.

    Args:
        request: of an earlier head's time.
        now: Unix seconds.
        heard: the notice that this node's member has from an earlier head, with the seconds that are left now; None if
            it has none. It is counted by this machine's clock alone. Else the age is by the clocks of both machines,
            and what they differ by makes the seconds wrong.
    """
    if request.seconds_left is None:
        return request
    if heard is not None and heard.seconds_left is not None and heard.reason == notice_in(request).reason:
        return replace(request, seconds_left=min(request.seconds_left, heard.seconds_left))
    age_s = 0.0
    with contextlib.suppress(ValueError):
        given = datetime.strptime(request.time, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc)
        age_s = now - given.timestamp()
    return replace(request, seconds_left=min(request.seconds_left, max(0.0, request.seconds_left - age_s)))


def notice_in(request: Request) -> NoticeGiven:
    """Return what a notice or an announced stop says; without a known reason it is an operator's."""
    reason: NoticeReason = next((known for known in NOTICE_REASONS if known == request.reason), "operator")
    left_s = request.seconds_left
    return NoticeGiven(reason=reason, seconds_left=None if left_s is None else max(0.0, left_s), by=request.by)
