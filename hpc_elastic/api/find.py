"""Finds the run that a word means: a path, a job id, a name."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpc_elastic.errors import RunDirectoryError, UsageError
from hpc_elastic.job_ids import split_task_id
from hpc_elastic.rundir import store
from hpc_elastic.rundir.index import find_entry, find_task, index_path
from hpc_elastic.rundir.layout import ArrayLayout, RunLayout

DEFAULT_ROOT = "hpc-elastic-runs"  # below the working directory, where the site names no other place


def find_run(wanted: str | None) -> RunLayout:
    """The run directory for a path, a job id, a name, a run id, or None for the latest run.

    The index is asked first for anything that is no path, then the default place below the working
    directory, for runs that the index lost.

    Raises:
        UsageError: nothing has this name, or it is that of a whole array.
        RunDirectoryError: the path exists and is no run directory.
    """
    found = find_run_or_array(wanted)
    if isinstance(found, ArrayLayout):
        record = store.read_json(found.record) or {}
        name = record.get("job_id") or found.root
        raise UsageError(
            f"{wanted or 'the latest submission'} is an array of {len(record.get('tasks', ()))} runs, expected one run",
            tip=f"name a task of it, such as {name}_0; `hpc-elastic status {name}` lists them",
        )
    return found


def find_run_or_array(wanted: str | None) -> RunLayout | ArrayLayout:
    """The same, where an array of runs is meant as well: by its folder, job id, name or id.

    `<array>_<task>` is one of its runs.

    Raises:
        UsageError: nothing has this name.
        RunDirectoryError: the path exists and is neither.
    """
    if wanted is not None and (os.sep in wanted or is_run_directory(wanted) or wanted in (".", "..")):
        given = os.path.expanduser(wanted)
        return ArrayLayout(given) if is_array(given) else require_run_directory(wanted)
    index = index_path(os.environ)
    entry = find_entry(index, wanted)
    if entry is not None:
        return ArrayLayout(entry.run_dir) if entry.tasks else RunLayout(entry.run_dir)
    if wanted is not None and (found := find_task(index, wanted)):
        return ArrayLayout(found[0].run_dir).task(found[1])
    path = _search_default_place(wanted)
    if path is not None:
        return ArrayLayout(path) if is_array(path) else RunLayout(path)
    if wanted is None:
        raise UsageError("there is no run yet", tip="start one with `hpc-elastic submit job.yaml`")
    raise UsageError(
        f"no run {wanted!r}: it is no run directory, and no run has that name or job id",
        tip="`hpc-elastic list` shows the runs",
    )


def is_array(path: str) -> bool:
    """Whether there is an array's record in it."""
    return os.path.isfile(ArrayLayout(path).record)


def is_run_directory(path: str) -> bool:
    """Whether there is a plan in it."""
    return os.path.isfile(RunLayout(path).plan)


def require_run_directory(path: str) -> RunLayout:
    """The layout of the run directory at a path.

    Raises:
        RunDirectoryError: there is none.
    """
    path = os.path.expanduser(path)
    if not os.path.isdir(path):
        raise RunDirectoryError(f"there is no directory {path}", tip="`hpc-elastic list` shows the runs")
    if not is_run_directory(path):
        raise RunDirectoryError(
            f"{path} is not a run directory: there is no plan.json in it", tip="`hpc-elastic list` shows the runs"
        )
    return RunLayout(path)


def _search_default_place(wanted: str | None) -> str | None:
    try:
        names = os.listdir(DEFAULT_ROOT)
    except OSError:
        return None
    paths = [os.path.join(DEFAULT_ROOT, name) for name in names]
    found = [(_submitted(record), path) for path, record in _records(paths) if _means(path, record, wanted)]
    if not found and wanted is not None and (split := split_task_id(wanted)):
        found = [
            (_submitted(record), ArrayLayout(path).task(split[1]).root)
            for path, record in _records(paths)
            if split[1] < len(record.get("tasks", ())) and _means(path, record, split[0])
        ]
    return max(found)[1] if found else None


def _records(paths: Sequence[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The run directories and arrays among them, with the record of what the scheduler was given."""
    for path in paths:
        if is_run_directory(path) or is_array(path):
            record = store.read_json(RunLayout(path).submission) or store.read_json(ArrayLayout(path).record)
            yield path, record if isinstance(record, dict) else {}


def _submitted(record: Mapping[str, Any]) -> str:
    return str(record.get("submitted", ""))


def _means(path: str, record: Mapping[str, Any], wanted: str | None) -> bool:
    return wanted in (None, os.path.basename(path), record.get("job_id"), record.get("name"))
