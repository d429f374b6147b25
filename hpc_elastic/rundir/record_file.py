"""Reads records for display: a record that exists and cannot be parsed is an error, not an absent record.

The agents' own reader treats an incomplete record as absent and reads again. For a person that would hide a result: a
run whose `result.json` is empty looked as if it ran for ever.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.rundir.submissions import FORMAT_VERSION

_BEING_WRITTEN_S = 0.5  # on a file system without hard links a claim has its name before it is complete
_NEW_S = 60.0  # the clock that dates files may be another machine's
_PAUSE_S = 0.05


class Shape(NamedTuple):
    """The types of the fields that are read of a record; the records' own classes load slower than `status` may take.

    `list` is a list of texts. Fields that are not in `needed` may be absent or null.
    """

    needed: Mapping[str, type]
    others: Mapping[str, type]


RESULT = Shape(
    {"state": str},
    {
        "exit_code": int,
        "reason": str,
        "cause": str,
        "attempts": int,
        "restarts": int,
        "failures": dict,
        "nodes": list,
        "started": str,
        "ended": str,
    },
)
PLAN = Shape({}, {"run": str, "name": str, "site": str, "scheduler": str, "restart": dict, "signals": dict})
SUBMISSION = Shape(
    {"job_id": str},
    {
        "run": str,
        "name": str,
        "scheduler": str,
        "submitted": str,
        "host": str,
        "foreground": bool,
        "array": str,
        "array_task": int,
        "parameters": dict,
        "selected_by": dict,
    },
)
ARRAY = Shape(
    {"tasks": list},
    {"array": str, "name": str, "site": str, "scheduler": str, "job_id": str, "submitted": str, "limit": int},
)
ALLOCATION = Shape({"job_id": str}, {"restart_count": int, "nodes": list, "node": str, "time": str})
ATTEMPT = Shape({}, {"allocation": int, "head": str, "members": list, "roles": list, "spend": dict, "time": str})
_VERSION_TIP = "look at the run with the version of hpc_elastic that wrote it; `hpc-elastic --version` says this one's"
_NAMES = {str: "text", int: "a number", bool: "true or false", dict: "an object", list: "a list"}


class _VersionError(ValueError):
    """A record of a version that this one does not read."""


def read_record(path: str, shape: Shape, *, tip: str | None = None) -> Mapping[str, Any] | None:
    """Read a record as a JSON object; None if there is no such file.

    Args:
        path: the file.
        shape: the fields that will be read of it.
        tip: what to do if it cannot be parsed.

    Raises:
        RunDirectoryError: the file exists and cannot be read: refused, incomplete, or of another version.
    """
    deadline: float | None = None
    while True:
        content = _read(path)
        if content is None:
            return None
        try:
            return _parse(content, shape)
        except json.JSONDecodeError as error:
            problem = "it is empty" if not content.strip() else f"it is not JSON: {error}"
            deadline = deadline or time.monotonic() + (_BEING_WRITTEN_S if _is_new(path) else 0)
            if time.monotonic() >= deadline:
                raise RunDirectoryError(f"{path} cannot be read: {problem}", tip=tip) from None
            time.sleep(_PAUSE_S)
        except _VersionError as error:
            raise RunDirectoryError(f"{path} cannot be read: {error}", tip=_VERSION_TIP) from None
        except ValueError as error:
            raise RunDirectoryError(f"{path} cannot be read: {error}", tip=tip) from None


def _read(path: str) -> bytes | None:
    deadline = time.monotonic() + _BEING_WRITTEN_S
    while True:
        try:
            with open(path, "rb") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            # On NFS the opened file may be gone, because another file has its name meanwhile.
            if error.errno != errno.ESTALE or time.monotonic() >= deadline:
                raise _refused(path, error) from error
            time.sleep(_PAUSE_S)


def _refused(path: str, error: OSError) -> RunDirectoryError:
    tips = {
        errno.EACCES: "it belongs to another user: ask its owner",
        errno.EISDIR: "somebody put a directory in its place: move it away",
    }
    return RunDirectoryError(f"{path} cannot be read: {error.strerror or error}", tip=tips.get(error.errno or 0))


def _is_new(path: str) -> bool:
    """Return whether the file is so new that its writer may not be done."""
    try:
        return abs(time.time() - os.stat(path).st_mtime) < _NEW_S
    except OSError:
        return False


def _parse(content: bytes, shape: Shape) -> Mapping[str, Any]:
    """Parse a record.

    Raises:
        ValueError: the content is no record; a JSONDecodeError if it may be a record that is not complete yet.
    """
    try:
        record = json.loads(content)
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if not isinstance(record, dict):
        raise ValueError(f"expected an object, found {_describe(record)}")
    version = record.get("format_version", FORMAT_VERSION)
    if version != FORMAT_VERSION:
        raise _VersionError(f"it has format_version {version!r}, this hpc_elastic reads {FORMAT_VERSION}")
    for name, kind in (*shape.needed.items(), *shape.others.items()):
        value = record.get(name)
        if value is None and name in shape.needed:
            raise ValueError(f"{name} is missing")
        if value is not None and type(value) is not kind:
            raise ValueError(f"{name}: expected {_NAMES[kind]}, found {_describe(value)}")
    for name in ("nodes", "members", "roles"):
        if name in shape.others and not all(isinstance(item, str) for item in record.get(name) or ()):
            raise ValueError(f"{name}: expected a list of texts")
    for key, failure in (record.get("failures") or {}).items():
        if not key.isdecimal() or not isinstance(failure, dict):
            raise ValueError(f"failures.{key}: expected a failure by its rank")
    return record


def _describe(value: object) -> str:
    return "nothing" if value is None else _NAMES.get(type(value), type(value).__name__)
