"""A look at many runs and arrays together, at the price of one question to each scheduler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from hpc_elastic.api.schedulers import query_once
from hpc_elastic.errors import HpcElasticError
from hpc_elastic.observe.array import ArrayFacts, ArraySnapshot, make_array_snapshot, read_array
from hpc_elastic.observe.many import ManyWatch
from hpc_elastic.observe.snapshot import Snapshot
from hpc_elastic.rundir.index import IndexEntry
from hpc_elastic.rundir.layout import ArrayLayout, RunLayout


def look_at_many(
    entries: Sequence[IndexEntry], *, warn: Callable[[str], None]
) -> list[Snapshot | ArraySnapshot | None]:
    """Return a snapshot of each run and array; None for one that cannot be read, with a warning.

    Args:
        entries: the runs and arrays.
        warn: is called with a line about each thing that could not be done.
    """
    listed = [_Listed.of(entry, warn) for entry in entries]
    watch = ManyWatch([run for each in listed for run in each.runs], query_once, warn=warn)
    seen = iter(watch.look())
    found: list[Snapshot | ArraySnapshot | None] = []
    for each in listed:
        runs = list(islice(seen, len(each.runs)))
        if each.array is not None:
            found.append(make_array_snapshot(each.array, runs))
        else:
            found.append(runs[0] if runs else None)
    if watch.trouble:
        warn(f"states are from the run directories alone: {watch.trouble}")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listed:
    """A run, or an array, with the layouts of its runs; without any if they cannot be read."""

    runs: list[tuple[RunLayout, str]]
    array: ArrayFacts | None = None

    @classmethod
    def of(cls, entry: IndexEntry, warn: Callable[[str], None]) -> _Listed:
        if not entry.tasks:
            return cls(runs=[(RunLayout(entry.run_dir), entry.scheduler)])
        try:
            array = read_array(ArrayLayout(entry.run_dir))
        except HpcElasticError as error:
            warn(error.message)
            return cls(runs=[])
        return cls(runs=array.runs, array=array)
