"""The index of a user's runs, below the user's state folder: which there are, and where.

One line a run, or an array of runs, appended at submission. It is a convenience: a run directory is
complete without it, so a broken or unwritable index stops nothing, and directories that vanished are
passed over.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, fields

from hpc_elastic.rundir import store

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexEntry:
    """One submitted run, or an array of `tasks` runs, whose folder `run_dir` is then and whose id `run`.

    `folder` is the working directory of the submission, on the machine `host`; `folder_number` is its inode, by which
    machines that share it know it from another one of its name. Empty and 0 in an index that an older version wrote.
    """

    run: str
    name: str
    job_id: str
    site: str
    scheduler: str
    run_dir: str
    submitted: str
    tasks: int = 0
    folder: str = ""
    host: str = ""
    folder_number: int = 0


_LATER = ("tasks", "folder", "host", "folder_number")  # an older version did not write them
_FIELDS = tuple(field.name for field in fields(IndexEntry) if field.name not in _LATER)
_RUN_DIR = re.compile(r'"run_dir": ("(?:[^"\\]|\\.)*")')


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


def indexed_directories(path: str, *, among: Collection[str]) -> set[str]:
    """Which of these directories are those of runs and arrays in the index; only their lines are parsed."""
    found = set()
    for line in _lines(path):
        if match := _RUN_DIR.search(line):
            with contextlib.suppress(ValueError):
                directory = json.loads(match[1])
                if directory in among and _parse(line):  # of a torn line the run is in no list
                    found.add(directory)
    return found


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
    tasks, number = data.get("tasks", 0), data.get("folder_number", 0)
    folder, host = data.get("folder", ""), data.get("host", "")
    return IndexEntry(
        **{name: data[name] for name in _FIELDS},
        tasks=tasks if isinstance(tasks, int) else 0,
        folder=folder if isinstance(folder, str) else "",
        host=host if isinstance(host, str) else "",
        folder_number=number if isinstance(number, int) else 0,
    )
