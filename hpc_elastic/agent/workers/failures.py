"""Completes a failed rank's error file, and builds the failure record from it."""

from __future__ import annotations

import contextlib
import signal
import time

from hpc_elastic.agent.records.retries import retry_here
from hpc_elastic.agent.workers.spawn import WorkerOrder
from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.rundir.error_file import (
    FailedWorker,
    FailureClass,
    build_error,
    merge_error,
    parse_error,
    read_log_tail,
)
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import FailureRecord
from hpc_elastic.rundir.store import read_json, write_json

READ_WITHIN_S = 5.0  # a failure is reported without the worker's own message rather than late


def record_failure(
    layout: RunLayout,
    order: WorkerOrder,
    *,
    node: str,
    role: str,
    pid: int,
    exitcode: int,
    message: str = "",
    is_after_stop: bool = False,
) -> FailureRecord:
    """Complete a failed rank's error file, and return the failure record with its content.

    Args:
        layout: the run's file names.
        order: what the worker was started with.
        node: this node's name.
        role: the worker's role.
        pid: the worker's process id; 0 if it could not be started.
        exitcode: the worker's exit code; negative for a signal.
        message: why the worker could not be started.
        is_after_stop: whether the worker ended after the TERM of a stop.
    """
    path = layout.error(order.attempt, order.rank)
    signal_name = _signal_name(exitcode)
    data = None
    with contextlib.suppress(RunDirectoryError):
        data = retry_here(lambda: read_json(path), within_s=READ_WITHIN_S)
    error = parse_error(data)
    if error is None or error.failure_class is None:  # no error file, or one that only torch's @record wrote
        tail = read_log_tail(layout.stderr(order.attempt, order.rank))
        ours = build_error(
            FailedWorker(rank=order.rank, local_rank=order.local_rank, pid=pid, node=node, attempt=order.attempt),
            failure_class=_failure_class(pid, signal_name, has_error=error is not None),
            message=message or _message(exitcode, signal_name, tail),
            time_ns=time.time_ns(),
            exit_code=exitcode if signal_name is None else None,
            signal_name=signal_name,
            stderr_tail=tail,
        )
        data = merge_error(data, ours) if error is not None else ours
        with contextlib.suppress(RunDirectoryError):  # a full disk must not hide the failure itself
            write_json(path, data)
        error = parse_error(data)
    return FailureRecord(
        rank=order.rank,
        local_rank=order.local_rank,
        role=role,
        node=node,
        attempt=order.attempt,
        pid=pid,
        exitcode=exitcode,
        signal_name=signal_name,
        error_file=path,
        message=error.message if error else "",
        timestamp=error.timestamp if error else time.time(),
        failure_class=(error.failure_class if error else None) or ("signal" if signal_name else "exit_code"),
        is_after_stop=is_after_stop,
    )


def _failure_class(pid: int, signal_name: str | None, *, has_error: bool) -> FailureClass:
    if not pid:
        return "start_failed"
    if signal_name is not None:
        return "signal"
    return "exception" if has_error else "exit_code"


def _message(exitcode: int, signal_name: str | None, stderr_tail: str) -> str:
    if signal_name is not None:
        return f"killed by {signal_name}"
    lines = [line.strip() for line in stderr_tail.splitlines() if line.strip()]
    return lines[-1] if lines else f"exit code {exitcode}"


def _signal_name(exitcode: int) -> str | None:
    if exitcode >= 0:
        return None
    try:
        return signal.Signals(-exitcode).name
    except ValueError:
        return f"SIG{-exitcode}"
