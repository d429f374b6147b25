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
from collections.abc import Callable, Sequence
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
    """Append a record as one line that no other machine's line has overwritten; see `append_shared_lines`."""
    append_shared_lines([(path, data)], pause=pause, is_shared=is_shared)


def append_shared_lines(
    lines: Sequence[tuple[str, Json]],
    *,
    pause: Callable[[float], None] = time.sleep,
    is_shared: bool | None = None,
) -> None:
    """Append a record to each of several files, all of which have the same time to arrive.

    Args:
        lines: file and record of each; the files of an array of a thousand runs, say.
        pause: waits for so many seconds.
        is_shared: whether other machines may write to the files; None: unless they are on a disk of this one.

    Raises:
        FileSystemError: a line cannot be written, or is overwritten each time.
    """
    left = list(lines)
    for _ in range(TRIES):
        for path, data in left:
            store.append_line(path, data)
        left = [line for line in left if (store.may_be_shared(line[0]) if is_shared is None else is_shared)]
        if left:
            pause(ARRIVED_AFTER_S)
        left = [(path, data) for path, data in left if not _has_line(path, data)]
        if not left:
            return
    raise FileSystemError(f"cannot write {left[0][0]}: other machines write over it", tip="call it again")


def _has_line(path: str, data: Json) -> bool:
    """Return whether a line that was written is there; where the file cannot be read nothing says that it is not."""
    line = (json.dumps(data, ensure_ascii=False)).encode("utf-8", "backslashreplace")
    try:
        with open(path, "rb") as file:
            return line in file.read().split(b"\n")
    except OSError:
        return True
