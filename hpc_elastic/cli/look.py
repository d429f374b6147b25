"""A look at a run for a verb, which warns on standard error of what could not be done."""

from __future__ import annotations

import sys

from hpc_elastic.api.look import look_once
from hpc_elastic.observe.snapshot import Snapshot
from hpc_elastic.rundir.layout import RunLayout


def look(layout: RunLayout) -> Snapshot:
    """The run now."""
    return look_once(layout, warn)


def warn(text: str) -> None:
    """Says what could not be done."""
    print(f"hpc-elastic: warning: {text}", file=sys.stderr)
