"""Takes one snapshot of a run, from its directory and its scheduler."""

from __future__ import annotations

from collections.abc import Callable

from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.observe.facts import FactReader
from hpc_elastic.observe.snapshot import Snapshot, make_snapshot, take_snapshot
from hpc_elastic.rundir.layout import RunLayout


def look_once(layout: RunLayout, warn: Callable[[str], None]) -> Snapshot:
    """Return a snapshot of the run; ask the scheduler only without a result, and write one that no agent will write.

    Args:
        layout: the run's.
        warn: takes a line about what could not be done.
    """
    reader = FactReader(layout)
    snapshot = make_snapshot(reader.read(), None)
    if snapshot.is_over or not snapshot.scheduler:
        return snapshot
    from hpc_elastic.api.schedulers import query_once
    from hpc_elastic.observe.watch import RunWatch

    scheduler = query_once(snapshot.scheduler, layout.root)
    try:
        return RunWatch(layout, scheduler, reader=reader).look()
    except RunDirectoryError as error:  # somebody else's run, or a full disk: it can be looked at all the same
        warn(error.message)
        return take_snapshot(layout, scheduler)
