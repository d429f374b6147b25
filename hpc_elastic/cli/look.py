"""A look at a run for a verb, which warns on standard error of what could not be done."""

from __future__ import annotations

import sys

from hpc_elastic.api.look import look_once
from hpc_elastic.observe.snapshot import Snapshot
from hpc_elastic.printable import printable
from hpc_elastic.rundir.layout import RunLayout


def look(layout: RunLayout) -> Snapshot:
    """Return a snapshot of the run."""
    return look_once(layout, warn)


def warn(text: str) -> None:
    """Print a warning about something that could not be done."""
    note(f"warning: {text}")


def note(text: str) -> None:
    """Print a line on standard error, because it does not belong to the output."""
    print(f"hpc-elastic: {printable(text)}", file=sys.stderr)
