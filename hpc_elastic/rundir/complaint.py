"""Formats the line in which an agent reports the error it gave up for, and finds it again in the agent's output."""

from __future__ import annotations

import os
import re

from hpc_elastic.printable import printable_line

_TAIL_BYTES = 8192
_SRUN_BYTES = 1 << 20  # srun writes a line for each of thousands of tasks that have ended, or that it could not start
_COMPLAINT = re.compile(r"hpc-elastic agent \(job (\S+), start (\d+)\): error: (.*)")


def complaint(message: str, start: tuple[str, int] | None) -> str:
    """Format the error line of an agent of this job and restart count; `start` is None if the agent does not know them.

    Later starts of a run append to the same file, and so do refused agents of another job.
    """
    return (
        f"hpc-elastic agent{f' (job {start[0]}, start {start[1]})' if start else ''}: error: {printable_line(message)}"
    )


def read_complaint(path: str, start: tuple[str, int]) -> str:
    """Return the error for which the agent of that start gave up; empty if there is none or the file is unreadable."""
    found = (_COMPLAINT.fullmatch(line) for line in reversed(last_lines(path)))
    return next((match[3] for match in found if match and (match[1], int(match[2])) == start), "")


def last_script_lines(path: str) -> list[str]:
    """Return the lines at the end of a batch script's output in which srun and slurmstepd may tell of many nodes."""
    return last_lines(path, most_bytes=_SRUN_BYTES)


def last_lines(path: str, *, most_bytes: int = _TAIL_BYTES) -> list[str]:
    """Return the lines at the end of a file, the first one perhaps cut; none if it cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - most_bytes))
            return file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
