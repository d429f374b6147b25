"""Completes a failed rank's error file with its class, and builds the failure record from it."""

from __future__ import annotations

import contextlib
import signal
from dataclasses import replace
from typing import Any

from hpc_elastic.agent.records.retries import retry_here
from hpc_elastic.agent.workers.circumstances import Circumstances
from hpc_elastic.agent.workers.spawn import WorkerOrder
from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.failures.classify import Classified, classify
from hpc_elastic.failures.evidence import FailureEvidence
from hpc_elastic.rundir.error_file import (
    CALLSTACK_LIMIT,
    MESSAGE_LIMIT,
    STDERR_TAIL_LIMIT,
    FailedWorker,
    build_error,
    clip,
    merge_error,
    parse_error,
)
from hpc_elastic.rundir.full_disk import why_no_space
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import FailureRecord
from hpc_elastic.rundir.store import read_json, write_json

FIELD_LIMIT = 1024  # characters of a frame, a detail, or the name of a type
READ_WITHIN_S = 5.0  # a failure is reported without the worker's own message rather than late


def record_failure(
    layout: RunLayout,
    order: WorkerOrder,
    *,
    node: str,
    role: str,
    pid: int,
    exitcode: int,
    timestamp: float,
    message: str = "",
    is_after_stop: bool = False,
    circumstances: Circumstances | None = None,
) -> FailureRecord:
    """Complete a failed rank's error file, and return the failure record with its content.

    Args:
        layout: the run's file names.
        order: what the worker was started with.
        node: this node's name.
        role: the worker's role.
        pid: the worker's process id; 0 if it could not be started.
        exitcode: the worker's exit code; negative for a signal.
        timestamp: when it ended, in Unix seconds; what the worker itself wrote of its failure says it better.
        message: why the worker could not be started.
        is_after_stop: whether the worker ended after the TERM of a stop.
        circumstances: what the node says; None: nothing is asked.
    """
    path = layout.error(order.attempt, order.rank)
    data = None
    with contextlib.suppress(RunDirectoryError):
        data = retry_here(lambda: read_json(path), within_s=READ_WITHIN_S)
    tail = order.stderr_tail(layout)
    evidence = _gather(order, data, tail, pid=pid, exitcode=exitcode, message=message, circumstances=circumstances)
    evidence = replace(evidence, sent_signal="SIGTERM" if is_after_stop else "")
    classified = classify(evidence)
    worker = FailedWorker(rank=order.rank, local_rank=order.local_rank, pid=pid, node=node, attempt=order.attempt)
    data = _complete(data, worker, evidence, classified, timestamp)
    if order.output is not None:  # what the worker itself read was not all: the agent writes its log
        data["stderr_tail"] = clip(tail, STDERR_TAIL_LIMIT)
    told, why = classified.message, _write(path, data)
    if why and not (evidence.written_by or evidence.signal_name or message or tail.strip()):
        told = f"what it said could not be written: {why}"
    error = parse_error(data)
    return FailureRecord(
        rank=order.rank,
        local_rank=order.local_rank,
        role=role,
        node=node,
        attempt=order.attempt,
        pid=pid,
        exitcode=exitcode,
        signal_name=evidence.signal_name,
        error_file=path,
        message=clip(told, MESSAGE_LIMIT),
        timestamp=error.timestamp if error else timestamp,
        failure_class=classified.failure_class.value,
        frame=data["frame"],
        detail=data["detail"],
        is_after_stop=is_after_stop,
    )


def _write(path: str, data: dict[str, Any]) -> str:
    """Write an error file; return why the disk has no room, "" otherwise: it must not hide the failure itself."""
    try:
        write_json(path, data, is_durable=False)  # the head's records are durable, and all wait for this one
    except RunDirectoryError as refusal:
        return why_no_space(refusal)
    return ""


def _gather(
    order: WorkerOrder,
    data: Any,
    stderr_tail: str,
    *,
    pid: int,
    exitcode: int,
    message: str,
    circumstances: Circumstances | None,
) -> FailureEvidence:
    """Return what is known of a worker's end: what its error file and output say, and what the node says."""
    signal_name, error = _signal_name(exitcode), parse_error(data)
    evidence = FailureEvidence(
        exit_code=exitcode if signal_name is None else None,
        signal_name=signal_name,
        is_started=pid != 0,
        written_by="" if error is None else "record" if error.failure_class is None else "bootstrap",
        failure_class=(error.failure_class or "") if error else "",
        message=error.message if error else message,
        exception_type=_text(data, "exception_type"),
        traceback=_callstack(data) if error else "",
        stderr_tail=stderr_tail,
        directory=order.directory,
    )
    if circumstances is None or not pid:
        return evidence
    text = f"{evidence.message}\n{evidence.traceback}\n{stderr_tail}"
    measured = circumstances.measure(pid, exitcode, text, order.directory)
    return replace(
        evidence,
        memory=measured.memory,
        host_oom_kills=measured.host_oom_kills,
        free=measured.free,
        xids=measured.xids,
    )


def _complete(
    data: Any, worker: FailedWorker, evidence: FailureEvidence, classified: Classified, timestamp: float
) -> dict[str, Any]:
    """Return an error file's content with its class: what the worker wrote stands, and what it left out is added."""
    ours = build_error(
        worker,
        failure_class="exception",
        message=classified.message,
        time_ns=round(timestamp * 1e9),
        exit_code=evidence.exit_code,
        signal_name=evidence.signal_name,
        stderr_tail=evidence.stderr_tail,
    )
    merged = data if evidence.written_by == "bootstrap" else merge_error(data, ours) if evidence.written_by else ours
    found = {
        "class": classified.failure_class.value,
        "frame": clip(classified.frame, FIELD_LIMIT),
        "detail": clip(classified.detail, FIELD_LIMIT),
    }
    return {**merged, **found}


def _callstack(data: Any) -> str:
    """Return the traceback in an error file of torch's format, "" if there is none."""
    message = data.get("message") if isinstance(data, dict) else None
    extra_info = message.get("extraInfo") if isinstance(message, dict) else None
    text = extra_info.get("py_callstack") if isinstance(extra_info, dict) else None
    return clip(text, CALLSTACK_LIMIT) if isinstance(text, str) else ""


def _text(data: Any, name: str) -> str:
    value = data.get(name) if isinstance(data, dict) else None
    return value[:FIELD_LIMIT] if isinstance(value, str) else ""


def _signal_name(exitcode: int) -> str | None:
    if exitcode >= 0:
        return None
    try:
        return signal.Signals(-exitcode).name
    except ValueError:
        return f"SIG{-exitcode}"
