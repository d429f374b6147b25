"""The index of a user's runs, below the user's state folder: which there are, and where.

One line a run, or an array of runs, appended at submission. It is a convenience: a run directory is
complete without it, so a broken or unwritable index stops nothing, and directories that vanished are
passed over.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields

from hpc_elastic.job_ids import split_task_id
from hpc_elastic.rundir import store

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexEntry:
    """One submitted run, or an array of `tasks` runs, whose folder `run_dir` is then and whose id `run`."""

    run: str
    name: str
    job_id: str
    site: str
    scheduler: str
    run_dir: str
    submitted: str
    tasks: int = 0


_FIELDS = tuple(field.name for field in fields(IndexEntry) if field.name != "tasks")


def index_path(environ: Mapping[str, str]) -> str:
    """Where the index is, by the XDG base directory specification: relative values are ignored."""
    state_home = environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state_home):
        state_home = os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".local", "state")
    return os.path.join(state_home, "hpc_elastic", "runs.jsonl")


def append_entry(path: str, entry: IndexEntry) -> None:
    """Adds a run.

    Raises:
        RunDirectoryError: the index cannot be written; the caller says so and goes on.
    """
    store.append_line(path, {"format_version": FORMAT_VERSION, **asdict(entry)})


def read_entries(path: str, *, containing: str = "") -> Iterator[IndexEntry]:
    """The runs whose directory is still there, newest first, each directory once.

    Args:
        path: the index.
        containing: only lines with this text are parsed: thousands of runs cost no time.
    """
    seen: set[str] = set()
    for line in reversed(_lines(path)):
        if containing in line and (entry := _parse(line)) and entry.run_dir not in seen:
            seen.add(entry.run_dir)
            if os.path.isdir(entry.run_dir):
                yield entry


def find_entry(path: str, wanted: str | None) -> IndexEntry | None:
    """The newest run or array with this job id, name or id; the newest of all for None."""
    needle = json.dumps(wanted, ensure_ascii=False) if wanted is not None else ""
    for entry in read_entries(path, containing=needle):
        if wanted is None or wanted in (entry.job_id, entry.name, entry.run):
            return entry
    return None


def find_task(path: str, wanted: str) -> tuple[IndexEntry, int] | None:
    """The newest array, and the number of the task in it, that `<array's job id, name or id>_<task>` means."""
    array, task = split_task_id(wanted) or (None, 0)
    if array is None:
        return None
    for entry in read_entries(path, containing=json.dumps(array, ensure_ascii=False)):
        if array in (entry.job_id, entry.name, entry.run) and task < entry.tasks:
            return entry, task
    return None


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []


def _parse(line: str) -> IndexEntry | None:
    """An entry, or None for a line that is torn or of somebody else."""
    try:
        data = json.loads(line)
    except ValueError:
        return None
    if not isinstance(data, dict) or not all(isinstance(data.get(name), str) for name in _FIELDS):
        return None
    tasks = data.get("tasks", 0)
    return IndexEntry(**{name: data[name] for name in _FIELDS}, tasks=tasks if isinstance(tasks, int) else 0)
