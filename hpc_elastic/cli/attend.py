"""Waits for a run that was started, quietly or following it, and returns its exit code."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TextIO

from hpc_elastic.cli.terminal import given_back
from hpc_elastic.observe.display import open_display
from hpc_elastic.observe.follow import follow
from hpc_elastic.observe.narrate import narrate_end
from hpc_elastic.observe.snapshot import Snapshot
from hpc_elastic.printable import printable, printable_line
from hpc_elastic.rundir.layout import RunLayout


def attend(
    layout: RunLayout, snapshots: Iterable[Snapshot], *, is_followed: bool, output: TextIO, run: str | None = None
) -> int:
    """Go through the snapshots of a run until it is over.

    Args:
        layout: the run's.
        snapshots: the last one is of the end.
        is_followed: show progress and rank 0's output; else print only how it ended, and why information is missing.
        output: where rank 0's output goes; all else goes to standard error.
        run: names the run in the commands that are shown; None for its job id.
    """
    if is_followed:
        with given_back(sys.stderr), open_display(sys.stderr, output) as display:
            return _exit_code(follow(layout, snapshots, display, run=run))
    last = _wait(snapshots)
    for line in narrate_end(last, run):
        print(printable_line(line), file=sys.stderr)
    return _exit_code(last)


def _wait(snapshots: Iterable[Snapshot]) -> Snapshot:
    """Return the last snapshot; print once, for a user who waits for days, what is missing or keeps the job waiting."""
    said: set[str] = set()
    for snapshot in snapshots:
        if snapshot.note and snapshot.note not in said:
            said.add(snapshot.note)
            print(f"hpc-elastic: {printable(snapshot.note)}", file=sys.stderr)
    return snapshot


def _exit_code(snapshot: Snapshot) -> int:
    return 1 if snapshot.exit_code is None else snapshot.exit_code
