"""Writes and reads the index of a user's runs and their directories, a file below the user's state folder.

A line is appended for each run, or array of runs, at its submission. The index is a convenience: a run directory
is complete without it, so a broken or unwritable index stops nothing, and entries whose directory has vanished
are skipped.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, fields

from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.home import find_home
from hpc_elastic.rundir.shared_lines import append_shared_line

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexEntry:
    """One submitted run, or an array of `tasks` runs; for an array `run_dir` is its folder and `run` its id.

    `folder` is the working directory of the submission, on the machine `host`. `folder_number` is its inode, which
    tells it from a folder of the same name on a machine that does not share it. An older version left them out: then
    they are empty and 0.
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


_LATER = ("tasks", "folder", "host", "folder_number")  # fields that an older version did not write
_FIELDS = tuple(field.name for field in fields(IndexEntry) if field.name not in _LATER)
_RUN_DIR = re.compile(r'"run_dir": ("(?:[^"\\]|\\.)*")')


def index_path(environ: Mapping[str, str]) -> str:
    """Return the index's path, by the XDG base directory specification: relative values are ignored.

    It is empty for a user without a home. The file systems of homes are asked, which may hang.
    """
    state_home = environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state_home):
        home = find_home(environ)
        if not home:
            return ""
        state_home = os.path.join(home, ".local", "state")
    return os.path.join(state_home, "hpc_elastic", "runs.jsonl")


def append_entry(path: str, entry: IndexEntry) -> None:
    """Append an entry to the index.

    Raises:
        RunDirectoryError: the index cannot be written; the caller reports that and goes on.
    """
    if not path:
        raise RunDirectoryError(
            f"there is no home for it: HOME is {os.environ.get('HOME', 'not set')!r}, and the password database has no "
            "folder for this user either; XDG_STATE_HOME may name another one"
        )
    append_shared_line(path, {"format_version": FORMAT_VERSION, **asdict(entry)})


def read_entries(path: str, *, containing: str = "", are_gone: bool | None = False) -> Iterator[IndexEntry]:
    """Yield the runs whose directory still exists, newest first, each directory once.

    Args:
        path: the index.
        containing: only lines with this text are parsed, so that thousands of runs cost no time.
        are_gone: yield the runs whose directory has vanished, and no others; None: yield these and those.
    """
    seen: set[str] = set()
    for line in reversed(_lines(path)):
        if containing in line and (entry := _parse(line)) and entry.run_dir not in seen:
            seen.add(entry.run_dir)
            if are_gone is None or os.path.isdir(entry.run_dir) != are_gone:
                yield entry


def indexed_directories(path: str, *, among: Collection[str]) -> set[str]:
    """Return those of the directories that belong to runs or arrays in the index; only their lines are parsed."""
    found = set()
    for line in _lines(path):
        if match := _RUN_DIR.search(line):
            with contextlib.suppress(ValueError):
                directory = json.loads(match[1])
                if directory in among and _parse(line):  # a run whose line is incomplete counts as not indexed
                    found.add(directory)
    return found


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []


def _parse(line: str) -> IndexEntry | None:
    """Parse an entry; None for a line that is incomplete or was not written by this package."""
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
