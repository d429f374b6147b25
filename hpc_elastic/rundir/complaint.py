"""How an agent says for what error it gave up, and how that is found again in its output."""

from __future__ import annotations

import os

PREFIX = "hpc-elastic agent: error: "
_TAIL_BYTES = 8192


def read_complaint(path: str) -> str:
    """The error for which the agent with this output gave up; empty if it did not, or cannot be read."""
    said = (line.partition(PREFIX)[2] for line in reversed(last_lines(path)) if line.startswith(PREFIX))
    return next(said, "")


def last_lines(path: str) -> list[str]:
    """The lines in the last 8 KiB of a file, the first one perhaps cut; none if it cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
