"""Makes writes to standard error never fail: its disk may be full, a quota used up, its reader gone."""

from __future__ import annotations

import io
import sys
from contextlib import suppress
from typing import Any


def make_stderr_lossy() -> None:
    """Drop what standard error does not take, without an error.

    A message that cannot be written must not keep anything from being done or recorded, nor change an exit code: Python
    itself ends with 120 where it cannot write what is left at the end. A process that has no standard error gets none.
    """
    if sys.stderr is None:
        return
    raw = io.BufferedWriter(_LossyFile(2, "w", closefd=False))
    sys.stderr = io.TextIOWrapper(raw, encoding=sys.stderr.encoding, errors="backslashreplace", line_buffering=True)


class _LossyFile(io.FileIO):
    """A file to which every write succeeds."""

    def write(self, content: Any, /) -> int:
        """Write as much as can be written, and report success."""
        written: int | None = None
        with suppress(OSError):
            written = super().write(content)  # None where the reader of a pipe that does not block is too slow
        return memoryview(content).nbytes if written is None else written
