"""Lists the known runs and arrays: those of the user's index, and those below this folder that it does not have."""

from __future__ import annotations

import contextlib
import heapq
import json
import os
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from hpc_elastic.api.identity import folder_number, host_name, working_directory
from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.job_ids import split_task_id
from hpc_elastic.rundir import store
from hpc_elastic.rundir.index import IndexEntry, index_path, indexed_directories, read_entries
from hpc_elastic.rundir.layout import DEFAULT_ROOT, ArrayLayout, RunLayout

MOST_READ = 500  # run directories, for a job id that the index does not have


def known_runs(wanted: str | None = None) -> Iterator[IndexEntry]:
    """Return the known runs and arrays, newest first: those with this job id, name, run id or folder name, or all.

    The directories below `./hpc-elastic-runs` that are not in the index count as well: the home may be
    a new one, or the folder may have been moved.
    """
    index = index_path(os.environ)
    needle = "" if wanted is None else _needle(wanted)
    merged = heapq.merge(
        read_entries(index, containing=needle), _lost_runs(index), key=lambda entry: entry.submitted, reverse=True
    )
    return (entry for entry in merged if wanted is None or has_name(entry, wanted))


def find_removed(wanted: str) -> IndexEntry | None:
    """Return the newest run or array of this name or id in the index whose directory was moved or removed."""
    entries = read_entries(index_path(os.environ), containing=_needle(wanted), are_gone=True)
    return next((entry for entry in entries if has_name(entry, wanted)), None)


def removed_before(wanted: str | None, found: IndexEntry | None) -> Iterator[IndexEntry]:
    """Yield, newest first, the runs and arrays whose directory is gone and that are meant before the one found.

    Those of this folder come before all others. Without a name only those of this folder are meant.

    Args:
        wanted: the name or id; None if none was given.
        found: what it means among the runs whose directory is there; None if nothing.
    """
    is_here = found is not None and is_of_this_folder(found)
    for entry in read_entries(index_path(os.environ), containing=_needle(wanted or ""), are_gone=None):
        is_newer = found is None or entry.submitted > found.submitted
        if is_here and not is_newer:
            return  # so that no older directory is looked for
        if (wanted is not None and not has_name(entry, wanted)) or os.path.isdir(entry.run_dir):
            continue
        if is_of_this_folder(entry) or (is_newer and not is_here and wanted is not None):
            yield entry


def _needle(wanted: str) -> str:
    """Return how a name or id stands in a line of the index."""
    return json.dumps(wanted, ensure_ascii=False)[1:-1]


def has_name(entry: IndexEntry, wanted: str) -> bool:
    """Return whether `wanted` names the run: its job id, name, run id, or the name of its directory."""
    return wanted in (entry.job_id, entry.name, entry.run, os.path.basename(entry.run_dir))


def find_task(wanted: str) -> tuple[IndexEntry, int] | None:
    """Return the newest array, and the number of the task in it, that `<array's job id, name or id>_<task>` means."""
    array, task = split_task_id(wanted) or (None, 0)
    if array is None:
        return None
    return next(((entry, task) for entry in known_runs(array) if task < entry.tasks), None)


def find_by_later_job(wanted: str) -> RunLayout | None:
    """Return the newest run with a later job of this id: one of a chain, or its script submitted again by hand.

    The index has the first job of each run alone, so the run directories are read, of the newest runs.
    """
    if not wanted.isdecimal():
        return None
    layouts = (layout for entry in known_runs() for layout in _layouts(entry))
    return next((layout for layout in islice(layouts, MOST_READ) if wanted in _later_jobs(layout)), None)


def _layouts(entry: IndexEntry) -> Iterator[RunLayout]:
    if not entry.tasks:
        yield RunLayout(entry.run_dir)
    for task in range(entry.tasks):
        yield ArrayLayout(entry.run_dir).task(task)


def _later_jobs(layout: RunLayout) -> set[str]:
    """Return the ids of the chained jobs of a run, and of its latest allocation's."""
    jobs = set()
    with contextlib.suppress(RunDirectoryError):
        for line in store.read_lines(layout.requests):
            if isinstance(line, dict) and line.get("kind") == "chain":
                jobs.add(str(line.get("id")))
        if allocations := store.list_numbers(layout.allocations, above=1):
            jobs.add(str(_record(layout.allocation(allocations[-1])).get("job_id")))
    return jobs


def is_of_this_folder(entry: IndexEntry) -> bool:
    """Return whether the run was submitted in the working directory, or lies in its `hpc-elastic-runs`."""
    here = working_directory()
    if here is None:
        return False
    above, default = os.path.dirname(entry.run_dir), os.path.join(here, DEFAULT_ROOT)
    with contextlib.suppress(ValueError):  # no path: the index is damaged
        folder = os.fsdecode(entry.folder.encode("utf-8", "surrogateescape"))  # a path of this locale
        if folder and os.path.realpath(folder) == here and _is_seen_here(entry):
            return True
    return above == default or os.path.realpath(above) == default


def _is_seen_here(entry: IndexEntry) -> bool:
    """Return whether the submission's folder is one of this machine, and not one of the same name elsewhere."""
    return not entry.folder_number or entry.host == host_name() or entry.folder_number == folder_number()


def is_array(path: str) -> bool:
    """Return whether the directory holds an array's record."""
    return os.path.isfile(ArrayLayout(path).record)


def is_run_directory(path: str) -> bool:
    """Return whether the directory holds a run's plan."""
    return os.path.isfile(RunLayout(path).plan)


def enclosing_run(folder: str) -> str | None:
    """Return the run directory that the folder lies in, at any depth; None if there is none."""
    while (above := os.path.dirname(folder)) != folder:
        if is_run_directory(above):
            return above
        folder = above
    return None


def find_original(path: str) -> str | None:
    """Return the original of a copied run directory; None if this is the original, or the original is gone.

    The agents and the job of a copied run work in the original. A folder that was moved is no copy.
    """
    own = _own_directory(path)
    try:
        is_copy = os.stat(own).st_ino != os.stat(path).st_ino  # the same one may have several names, and mounts
    except OSError:
        return None
    return own if is_copy else None


def _own_directory(path: str) -> str:
    """Return the directory that the plan, or the array's record, names as its own; `path` if it is not there."""
    is_task = is_array(path)
    plan = RunLayout(ArrayLayout(path).task(0).root if is_task else path).plan
    said = _record(plan)
    own = str(said.get("run_dir", ""))
    if not own or _record(RunLayout(own).plan).get("run") != said.get("run"):
        return path
    return os.path.dirname(own) if is_task else own


def _lost_runs(index: str) -> list[IndexEntry]:
    """Return the runs in the default place that the index lacks, newest first; a copy counts as its original."""
    here = working_directory()
    root = os.path.join(here, DEFAULT_ROOT) if here else ""
    try:
        paths = {os.path.join(root, name) for name in os.listdir(root)} if root else set()
    except OSError:
        return []
    lost = (paths - indexed_directories(index, among=paths)) if paths else paths
    own = {_own_directory(path) for path in lost if is_run_directory(path) or is_array(path)}
    entries = [_entry(path) for path in own - indexed_directories(index, among=own)]
    return sorted(entries, key=lambda entry: entry.submitted, reverse=True)


def _entry(path: str) -> IndexEntry:
    """Return an index entry for a directory, nearly empty while it is submitted or if its record is unreadable."""
    tasks = 0
    if is_array(path):
        record = _record(ArrayLayout(path).record)
        found = record.get("tasks")
        tasks = len(found) if isinstance(found, list) and found else 1  # an array in any case
    else:
        record = _record(RunLayout(path).submission) or _record(RunLayout(path).plan)
    name, job_id, site, scheduler, submitted = (
        str(record.get(key, "")) for key in ("name", "job_id", "site", "scheduler", "submitted")
    )
    return IndexEntry(
        run=os.path.basename(path),
        name=name,
        job_id=job_id,
        site=site,
        scheduler=scheduler,
        run_dir=path,
        submitted=submitted,
        tasks=tasks,
    )


def _record(path: str) -> Mapping[str, Any]:
    try:
        record = store.read_json(path)
    except RunDirectoryError:  # reported when somebody looks at the run
        return {}
    return record if isinstance(record, dict) else {}
