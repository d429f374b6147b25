"""Makes sure that a failed rank's error file is its own, before the failure is recorded from it.

A rank hands the path of its error file on to its children, in the environment, and any of them may write there; so
may a rank that succeeds later. What another process wrote, and what is no error file at all, keeps a name of
its own beside it. What a rank said of an exception that it did not live to write down is written here.
"""

from __future__ import annotations

from typing import Any

from hpc_elastic.agent.records.retries import retry_here
from hpc_elastic.agent.workers.spawn import WorkerOrder
from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.failures.classify import find_exit_inside
from hpc_elastic.last_word import Word
from hpc_elastic.rundir.error_file import (
    FoundError,
    clean_error,
    clip,
    message_of,
    parse_json,
    read_error,
    set_aside,
)
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.store import write_json

READ_WITHIN_S = 5.0  # a failure is reported without the worker's own message rather than late
MESSAGE_LIMIT = 8 * 1024  # characters


def settle_error_file(
    layout: RunLayout, order: WorkerOrder, *, pid: int, exitcode: int, failing: Word | None, is_after_stop: bool = False
) -> bool:
    """Leave at the path of a rank's error file what the rank itself says of its failure, and nothing else.

    Args:
        layout: the run's file names.
        order: what the worker was started with.
        pid: the worker's process id; 0 if it could not be started.
        exitcode: the worker's exit code, negative for a signal.
        failing: what it said of the exception that ended it.
        is_after_stop: whether it ended after the TERM of a stop.

    Returns:
        Whether the worker failed by itself, which after a stop only its own account can tell, or that of the program
        that it ran.
    """
    said = _said(failing)
    try:
        found = retry_here(lambda: read_error(layout.error(order.attempt, order.rank)), within_s=READ_WITHIN_S)
        data = found.data if _is_of_rank(found, order, pid=pid, exitcode=exitcode, said=said) else None
        if data is None and found.exists:
            set_aside_error(layout, order.attempt, order.rank)
        _write(layout, order, pid, found, data, said)
    except RunDirectoryError:  # a full disk must not hide the failure itself
        return failing is not None or not is_after_stop
    if not is_after_stop:
        return True
    if failing is not None or (data is not None and "raised_by" not in data):
        return True
    return find_exit_inside(order.stderr_tail(layout)) is not None


def set_aside_error(layout: RunLayout, attempt: int, rank: int) -> None:
    """Rename the error file of a rank that did not write it or did not fail; do nothing if there is none."""
    set_aside(layout.error(attempt, rank), layout.other_error(attempt, rank))


def _said(failing: Word | None) -> dict[str, Any] | None:
    return clean_error(parse_json(failing.record)) if failing is not None and failing.record else None


def _write(
    layout: RunLayout,
    order: WorkerOrder,
    pid: int,
    found: FoundError,
    data: dict[str, Any] | None,
    said: dict[str, Any] | None,
) -> None:
    path = layout.error(order.attempt, order.rank)
    if data is not None:
        if not found.is_clean:
            write_json(path, data, is_durable=False)
    elif said is not None:
        tail = order.stderr_tail(layout)
        who = {"rank": order.rank, "local_rank": order.local_rank, "pid": pid, "attempt": order.attempt}
        write_json(path, {**_completed(said, tail), **who}, is_durable=False)


def _completed(said: dict[str, Any], tail: str) -> dict[str, Any]:
    """Add the end of standard error; its last line is the message of an exit code without one."""
    if not message_of(said):
        lines = [line.strip() for line in tail.splitlines() if line.strip()]
        text = lines[-1] if lines else f"exit code {said.get('exit_code')}"
        said = {**said, "message": {**said["message"], "message": clip(text, MESSAGE_LIMIT)}}
    return {**said, "stderr_tail": tail}


def _is_of_rank(found: FoundError, order: WorkerOrder, *, pid: int, exitcode: int, said: dict[str, Any] | None) -> bool:
    """Return whether the rank itself wrote the file, as far as can be told: torch's `@record` does not say who.

    A command may be a shell whose child is the program. A Python rank writes its process id when an exception ends it;
    so a file without one is of a rank that caught the exception, and exits, or that was ended while it
    told its agent of the same exception.
    """
    if (data := found.data) is None:
        return False
    if "pid" in data:
        return bool(data["pid"] == pid and data.get("attempt", order.attempt) == order.attempt)
    if order.kind == "command":
        return True
    told = clip(message_of(said), MESSAGE_LIMIT)
    if told:
        return told.startswith("ChildFailedError:") or clip(message_of(data), MESSAGE_LIMIT) == told
    return exitcode > 0
