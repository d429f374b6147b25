"""The format of `error.json`: torch's own, so that torch's tools read it, with more fields for this package.

torch's part is `{"message": {"message": ..., "extraInfo": {"py_callstack": ..., "timestamp": ...}}}`
(torch.distributed.elastic.multiprocessing.errors, `ErrorHandler` and `ProcessFailure`). Our fields stand
beside `message`: class, exit_code, signal, the worker's identity, time_ns, and the end of standard error.

The worker's bootstrap writes the file for an exception; the agent for everything else. Any process of the user may
write to it too, and anything: so it is read with bounds, and only what has the right type is taken from it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.store import dump_json, file_system_errors

if TYPE_CHECKING:  # the worker imports this module, and should import little besides
    from hpc_elastic.codec import Json

FORMAT_VERSION = 1
MESSAGE_LIMIT = 8 * 1024  # characters
CALLSTACK_LIMIT = 64 * 1024  # characters
STDERR_TAIL_LIMIT = 8 * 1024  # bytes
FILE_LIMIT = 16 * 1024 * 1024  # bytes; torch's @record does not limit messages
_DEEPEST = 8  # levels of a field that is not ours; deeper ones cannot be written again by every Python
_LONGEST_NUMBER = 20  # digits
_LATEST_S = 2**33  # Unix seconds, in the year 2242
# The error numbers of a path that is no file of ours, for which no later try helps.
_NO_FILE = (errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENXIO, errno.ENODEV, errno.EISDIR, errno.ENAMETOOLONG)
_CLASS_WORD = re.compile(r"[a-z_]{1,40}")
_OURS = {"exit_code", "signal", "rank", "local_rank", "pid", "node", "attempt", "time_ns", "stderr_tail"}
_KINDS: dict[str, tuple[type, ...]] = {  # of our fields; a field of another type is not taken over
    **dict.fromkeys(("rank", "local_rank", "pid", "attempt", "time_ns", "format_version"), (int,)),
    **dict.fromkeys(("node", "stderr_tail", "raised_by"), (str,)),
    "exit_code": (int, type(None)),
    "signal": (str, type(None)),
}

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


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundError:
    """What is at the path of an error file: whether anything is, and its content if that is an error file.

    `is_clean`: the file has this content and nothing else, as this package writes it.
    """

    exists: bool
    data: dict[str, Any] | None = None
    is_clean: bool = False


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
    kept = clean_error(existing)
    return ours if kept is None or not isinstance(ours, dict) else {**ours, **kept}


def read_error(path: str) -> FoundError:
    """Read an error file that any program may have written: never waits, nor reads more than FILE_LIMIT.

    Raises:
        FileSystemError: the file system failed, and may answer later.
    """
    with file_system_errors(path, "read"):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return FoundError(exists=os.path.islink(path))
        except OSError as error:
            if error.errno in _NO_FILE:
                return FoundError(exists=True)
            raise
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size > FILE_LIMIT:
                return FoundError(exists=True)
            content = _read_all(descriptor)
        finally:
            os.close(descriptor)
    data = clean_error(parse_json(content))
    return FoundError(exists=True, data=data, is_clean=data is not None and dump_json(data) == content)


def _read_all(descriptor: int) -> bytes:
    parts = []
    left = FILE_LIMIT
    while left > 0 and (part := os.read(descriptor, min(left, 1 << 20))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def parse_json(content: bytes) -> Any:
    """Parse JSON that any program may have written; None if it is none.

    Bytes that are not of its encoding are replaced, numbers that no field of ours can have become 0.
    """
    try:
        return json.loads(
            content.decode(json.detect_encoding(content), "replace"),
            strict=False,  # control characters in texts are taken as they are
            parse_int=lambda digits: int(digits) if len(digits) <= _LONGEST_NUMBER else 0,
            parse_float=_finite,
            parse_constant=lambda _: None,
        )
    except (ValueError, RecursionError, MemoryError):
        return None


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else 0.0


def clean_error(data: Any) -> dict[str, Any] | None:
    """Return what can be used of an error file's content: fields of the right type; None if it has no message.

    Fields that are neither torch's nor ours are kept, unless they are nested deeply.
    """
    if not isinstance(data, dict):
        return None
    message = data.get("message")
    if isinstance(message, dict) and isinstance(message.get("message"), str):
        message = {name: value for name, value in message.items() if _is_shallow(value, _DEEPEST)}
        extra = message.get("extraInfo", {})
        texts = {"py_callstack": message["message"], "timestamp": "0"}  # instead of what is no text
        extra = extra if isinstance(extra, dict) else texts
        wrong = {name: text for name, text in texts.items() if not isinstance(extra.get(name, ""), str)}
        message["extraInfo"] = {**extra, **wrong}
    elif not isinstance(message, str):
        return None
    kept = {name: value for name, value in data.items() if _is_usable(name, value)}
    if not kept.keys() >= _OURS:
        kept.pop("class", None)  # the file is not ours; whoever completes it finds the class
    return {**kept, "message": message}


def _is_usable(name: str, value: Any) -> bool:
    if name == "message":
        return True  # it was looked at
    if name == "class":
        return isinstance(value, str) and _CLASS_WORD.fullmatch(value) is not None
    if (kinds := _KINDS.get(name)) is None:
        return _is_shallow(value, _DEEPEST)
    if isinstance(value, bool) or not isinstance(value, kinds):
        return False
    return not isinstance(value, int) or abs(value) < 2**63


def _is_shallow(value: Any, levels: int) -> bool:
    if isinstance(value, dict):
        return levels > 0 and all(_is_shallow(each, levels - 1) for each in value.values())
    if isinstance(value, list):
        return levels > 0 and all(_is_shallow(each, levels - 1) for each in value)
    return True


def message_of(data: Any) -> str:
    """Return the message in an error file's content, as it is; "" if there is none."""
    message = data.get("message") if isinstance(data, dict) else None
    text = message.get("message") if isinstance(message, dict) else message
    return text if isinstance(text, str) else ""


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
        message=begin_with_text(clip(message, MESSAGE_LIMIT)),
        timestamp=_unix_seconds(data.get("time_ns"), timestamp),
        failure_class=clip(failure_class, 40) if isinstance(failure_class, str) else None,
    )


def begin_with_text(message: str) -> str:
    """Return a message whose first line says something: blank lines at its beginning, or after the type, are left out.

    `RuntimeError: `, a blank line and `no grad` become `RuntimeError: no grad`; the lines after it stay.
    """
    first, newline, rest = message.lstrip().partition("\n")
    if newline and first.rstrip().endswith(":") and rest.strip():
        return f"{first.rstrip()} {rest.lstrip()}"
    return first + newline + rest


def clip(text: str, limit: int) -> str:
    """Clip a text to about `limit` characters, its beginning and its end; what UTF-8 cannot hold is escaped."""
    if len(text) > limit:
        head, tail = limit // 4, limit - limit // 4
        text = f"{text[:head]}\n[... {len(text) - limit} characters left out ...]\n{text[-tail:]}"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def read_tail(path: str, limit: int = STDERR_TAIL_LIMIT) -> str:
    """Return the last `limit` bytes of a regular file, from the start of a line on; "" if it cannot be read.

    Zeros are left out: an NFS client shows them where the server had no room for what the client had taken.
    """
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
    return content.replace(b"\0", b"").decode("utf-8", "backslashreplace")


def read_log_tail(log: str, limit: int = STDERR_TAIL_LIMIT) -> str:
    """Return the end of a rank's log, also if the log has just been cut for its size; "" if there is no such file."""
    tail = read_tail(log, limit)
    missing = limit - len(tail.encode())
    return (read_tail(RunLayout.earlier(log), missing) if missing > 0 else "") + tail


def set_aside(path: str, name: str) -> None:
    """Rename whatever has the name of a rank's error file and is none of that rank; does nothing if it cannot be."""
    with contextlib.suppress(OSError):
        os.replace(path, name)


def _unix_seconds(time_ns: Any, timestamp: Any) -> float:
    if isinstance(time_ns, int) and not isinstance(time_ns, bool) and 0 <= time_ns < _LATEST_S * 10**9:
        return time_ns / 1e9
    try:
        seconds = float(timestamp)
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return seconds if 0 <= seconds < _LATEST_S else 0.0
