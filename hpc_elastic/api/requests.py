"""Asks the running agents of a run for something: a line of its requests, which the head reads once a second."""

from __future__ import annotations

import errno
import time
import uuid
from collections.abc import Sequence

from hpc_elastic.api.identity import host_name, owner_of, user_name
from hpc_elastic.codec import to_json
from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.rundir.full_disk import describe_cure, is_for_want_of_space
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import Request, utc_text
from hpc_elastic.rundir.shared_lines import append_shared_lines


def make_request(
    kind: str,
    *,
    reason: str | None = None,
    node: str | None = None,
    seconds_left: float | None = None,
    requeue: bool = False,
    allocation: int | None = None,
) -> Request:
    """Return a request of this user, now, with an id of its own; `rundir.records.Request` says what the others are."""
    return Request(
        kind=kind,
        by=f"{user_name()}@{host_name()}",
        time=utc_text(time.time()),
        reason=reason,
        id=uuid.uuid4().hex,
        node=node,
        seconds_left=seconds_left,
        requeue=requeue,
        allocation=allocation,
    )


def send(layout: RunLayout, request: Request) -> None:
    """Append a request to the run's file of requests.

    Raises:
        RunDirectoryError: the run directory cannot be written.
    """
    _append([(layout, request)])


def _append(requests: Sequence[tuple[RunLayout, Request]]) -> None:
    """Append requests to the files of runs of one owner, all of which get the same time to arrive."""
    try:
        append_shared_lines([(layout.requests, to_json(request)) for layout, request in requests])
    except RunDirectoryError as error:
        if (tip := _tip(requests[0][0], error)) is None:
            raise
        raise RunDirectoryError(error.message, tip=tip) from error.__cause__


def _tip(layout: RunLayout, error: RunDirectoryError) -> str | None:
    """Return what to do where a run cannot be asked from here; None if nobody knows."""
    cause = error.__cause__
    if is_for_want_of_space(error):
        return f"{describe_cure(error.message)}: the request is a line in this file; `hpc-elastic cancel` works without"
    number = cause.errno if isinstance(cause, OSError) else None
    if number == errno.EROFS:
        return "call it on a machine where the run directory can be written: the request is a line in it"
    if number in (errno.EACCES, errno.EPERM):
        owner = owner_of(layout.root)
        return f"a request is a line in this file: {owner} may write it; who may manage {owner}'s jobs can end the job"
    return None


def ask_to_stop(layout: RunLayout, reason: str) -> None:
    """Ask the agents to stop the run, with grace; `reason` says which program asks.

    Raises:
        RunDirectoryError: the run directory cannot be written.
    """
    send(layout, make_request("stop", reason=reason))


def ask_all_to_stop(layouts: Sequence[RunLayout], reason: str) -> None:
    """Ask the agents of several runs of one owner to stop, as `ask_to_stop` does, in the time that one takes.

    Raises:
        RunDirectoryError: one of the run directories cannot be written.
    """
    _append([(layout, make_request("stop", reason=reason)) for layout in layouts])
