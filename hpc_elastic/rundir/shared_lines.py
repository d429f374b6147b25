"""Appends to files of lines to which several machines append, as to the requests of a run.

Theory of operation. One kernel lets an append begin where the last one ended. Over NFS (open(2), O_APPEND) each client
writes where it believes the end to be: of lines that two of them append within some milliseconds one lies over the
other. Locks would help, and may hang for ever where a server's lock daemon cannot be reached. So whoever has
appended looks again when a write that was under way has arrived, and appends anew if its line is not there. What is
left of the line that was overwritten is no JSON, and readers leave it out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from hpc_elastic.errors import FileSystemError
from hpc_elastic.rundir import store

if TYPE_CHECKING:
    from hpc_elastic.codec import Json

ARRIVED_AFTER_S = 0.2  # an append of another machine, from its open to its close, on a server with work
TRIES = 10


def append_shared_line(
    path: str, data: Json, *, pause: Callable[[float], None] = time.sleep, is_shared: bool | None = None
) -> None:
    """Append a record as one line that no other machine's line has overwritten.

    Args:
        path: the file.
        data: the record.
        pause: waits for so many seconds.
        is_shared: whether other machines may write to the file; None: unless it is on a disk of this one.

    Raises:
        FileSystemError: the line cannot be written, or is overwritten each time.
    """
    for _ in range(TRIES):
        store.append_line(path, data)
        if not (store.may_be_shared(path) if is_shared is None else is_shared):
            return
        pause(ARRIVED_AFTER_S)
        if _has_line(path, data):
            return
    raise FileSystemError(f"cannot write {path}: other machines write over it", tip="call it again")


def _has_line(path: str, data: Json) -> bool:
    line = (json.dumps(data, ensure_ascii=False)).encode("utf-8", "backslashreplace")
    with store.file_system_errors(path, "read"), open(path, "rb") as file:
        return line in file.read().split(b"\n")
