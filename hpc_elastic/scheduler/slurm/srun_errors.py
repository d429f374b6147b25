"""Finds in a batch script's output why srun gave up starting the agents, or ended their step; pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

# srun 22.05 to 26.05, src/srun and src/api/step_launch.c. The first one counts: what follows is the end of the others.
_GAVE_UP = re.compile(r"srun: error: (Task launch for .* failed on node .*|Application launch failed: .*|Aborting, .*)")
_REBOOTED = re.compile(r"Aborting, io error and missing step on node ([0-9]{1,7})")
_BEGINS = "hpc_elastic: run directory "  # the first line of each start, which all write into one file


def find_launch_error(lines: Sequence[str]) -> str:
    """Return the first error for which srun gave up in the latest start of the job; empty if there is none."""
    begins = max((number for number, line in enumerate(lines) if line.startswith(_BEGINS)), default=0)
    found = map(_GAVE_UP.fullmatch, lines[begins:])
    return next((match[1] for match in found if match), "")


def find_rebooted(error: str) -> int | None:
    """Return the place in the step of the node that has started again while srun launched the agents; None if none has.

    Its slurmd is there and does not know the step, which srun then ends on all nodes. `error` is what
    `find_launch_error` has found.
    """
    match = _REBOOTED.fullmatch(error)
    return int(match[1]) if match else None
