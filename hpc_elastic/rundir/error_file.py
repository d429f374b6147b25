"""The format of `error.json`: torch's own, so that torch's tools read it, with more fields for this package.

torch's part is `{"message": {"message": ..., "extraInfo": {"py_callstack": ..., "timestamp": ...}}}`
(torch.distributed.elastic.multiprocessing.errors, `ErrorHandler` and `ProcessFailure`). Our fields stand
beside `message`: class, exit_code, signal, the worker's identity, time_ns, and the end of standard error.

The worker's bootstrap writes the file for an exception; the agent for everything else.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from hpc_elastic.rundir.layout import RunLayout

if TYPE_CHECKING:  # the worker imports this module, and should import little besides
    from hpc_elastic.codec import Json

FORMAT_VERSION = 1
MESSAGE_LIMIT = 8 * 1024  # characters
CALLSTACK_LIMIT = 64 * 1024  # characters
STDERR_TAIL_LIMIT = 8 * 1024  # bytes

FailureClass = Literal["exception", "exit_code", "signal", "start_failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedWorker:
    """The identity of the worker process that an error file is about."""

    rank: int
    local_rank: int
    pid: int
    node: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedError:
    """The fields that every error file has, whichever program wrote it; `timestamp` is in Unix seconds."""

    message: str
    timestamp: float
    failure_class: str | None


def build_error(
    worker: FailedWorker,
    *,
    failure_class: FailureClass,
    message: str,
    time_ns: int,
    exit_code: int | None = None,
    signal_name: str | None = None,
    callstack: str = "",
    stderr_tail: str = "",
) -> Json:
    """Build the content of an error file; texts of any length and with any characters are made to fit.

    Args:
        worker: the worker that failed.
        failure_class: the kind of failure.
        message: one line for people; for an exception `TypeName: text`, as torch has it.
        time_ns: the time of the failure, in Unix nanoseconds.
        exit_code: the exit status, None if a signal ended the process.
        signal_name: that signal, such as `SIGKILL`.
        callstack: the traceback of an exception; without one the message takes its place.
        stderr_tail: the last part of standard error.
    """
    extra_info = {
        "py_callstack": clip(callstack or message, CALLSTACK_LIMIT),  # torch's summary shows only this field
        "timestamp": str(time_ns // 1_000_000_000),
    }
    return {
        "message": {"message": clip(message, MESSAGE_LIMIT), "extraInfo": extra_info},
        "format_version": FORMAT_VERSION,
        "class": failure_class,
        "exit_code": exit_code,
        "signal": signal_name,
        "rank": worker.rank,
        "local_rank": worker.local_rank,
        "pid": worker.pid,
        "node": worker.node,
        "attempt": worker.attempt,
        "time_ns": time_ns,
        "stderr_tail": clip(stderr_tail, STDERR_TAIL_LIMIT),
    }


def merge_error(existing: Json, ours: Json) -> Json:
    """Add our fields to an error file that torch's `@record` wrote first, and keep its own fields.

    A file that is incomplete, or is no error file, is replaced.
    """
    if not isinstance(existing, dict) or "message" not in existing:
        return ours
    return {**ours, **existing}


def parse_error(data: Json) -> ParsedError | None:
    """Parse an error file of torch's two formats or of ours; return None if it is none of them.

    torch's `@record` does not limit messages, so they are clipped here as in `build_error`.
    """
    if not isinstance(data, dict):
        return None
    message, timestamp = data.get("message"), data.get("timestamp")
    if isinstance(message, dict):
        extra_info = message.get("extraInfo")
        timestamp = extra_info.get("timestamp") if isinstance(extra_info, dict) else None
        message = message.get("message")
    if not isinstance(message, str):
        return None
    failure_class = data.get("class")
    return ParsedError(
        message=clip(message, MESSAGE_LIMIT),
        timestamp=_unix_seconds(data.get("time_ns"), timestamp),
        failure_class=failure_class if isinstance(failure_class, str) else None,
    )


def clip(text: str, limit: int) -> str:
    """Clip a text to about `limit` characters, its beginning and its end; what UTF-8 cannot hold is escaped."""
    if len(text) > limit:
        head, tail = limit // 4, limit - limit // 4
        text = f"{text[:head]}\n[... {len(text) - limit} characters left out ...]\n{text[-tail:]}"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def read_tail(path: str, limit: int = STDERR_TAIL_LIMIT) -> str:
    """Return the last `limit` bytes of a regular file, from the start of a line on; "" if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return ""
        start = max(0, status.st_size - limit)
        content = os.pread(descriptor, limit, start)
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    if start:
        _, newline, rest = content.partition(b"\n")
        content = rest if newline else content
    return content.decode("utf-8", "backslashreplace")


def read_log_tail(log: str, limit: int = STDERR_TAIL_LIMIT) -> str:
    """Return the end of a rank's log, also if the log has just been cut for its size; "" if there is no such file."""
    tail = read_tail(log, limit)
    missing = limit - len(tail.encode())
    return (read_tail(RunLayout.earlier(log), missing) if missing > 0 else "") + tail


def _unix_seconds(time_ns: Any, timestamp: Any) -> float:
    if isinstance(time_ns, int):
        return time_ns / 1e9
    try:
        return float(timestamp)
    except (TypeError, ValueError):
        return 0.0
