"""Finds the records of the training states that a run has left in its run directory."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping

from hpc_elastic.codec import DecodeError, Json, from_json
from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.saved_states import find_saved
from hpc_elastic.rundir.state_records import KeptRecord, SaveManifest
from hpc_elastic.rundir.store import file_system_errors, find_json, list_numbers, read_json

_ELSEWHERE = re.compile(r"elsewhere-(\d+)\.json", re.ASCII)
LARGEST = 2**62  # of a number that a memory's header can hold


def parse_kept_record(data: Json) -> KeptRecord | None:
    """Return the record in a JSON value; None if it is none, or has numbers that no state has."""
    with contextlib.suppress(DecodeError):
        record = from_json(KeptRecord, data)
        numbers = (record.attempt, record.step, record.length)
        if all(0 <= number < LARGEST for number in numbers) and record.length > 0:
            return record
    return None


def read_kept_records(layout: RunLayout, ended: int) -> dict[str, KeptRecord]:
    """Return the records of the states that were written after an attempt, by the name of their files.

    Raises:
        RunDirectoryError: the folder or a record exists and cannot be read.
    """
    folder = layout.kept_states(ended)
    with file_system_errors(folder, "read"):
        try:
            names = sorted(os.listdir(folder))
        except (FileNotFoundError, NotADirectoryError):
            return {}
    stems = [stem for stem, extension in map(os.path.splitext, names) if extension == ".json"]
    read = ((stem, parse_kept_record(read_json(layout.kept_record(ended, stem)))) for stem in stems)
    return {stem: record for stem, record in read if record is not None}


def find_pinned(layout: RunLayout, ended: int, step: int) -> Mapping[str, KeptRecord]:
    """Return which files of another run are its state of this step, by their names; {} if nothing says so.

    Raises:
        RunDirectoryError: what says so exists and cannot be read.
    """
    with contextlib.suppress(DecodeError):
        return from_json(SaveManifest, find_json(layout.elsewhere(ended, step))).files
    return {}


def read_pinned(layout: RunLayout, ended: int) -> list[KeptRecord]:
    """Return the records of another run's states that count as written after an attempt of this one.

    Raises:
        RunDirectoryError: what says so exists and cannot be read.
    """
    folder = layout.kept_states(ended)
    with file_system_errors(folder, "read"):
        try:
            named = [found for name in os.listdir(folder) if (found := _ELSEWHERE.fullmatch(name))]
        except (FileNotFoundError, NotADirectoryError):
            return []
    return [record for each in named for record in find_pinned(layout, ended, int(each[1])).values()]


def find_latest_attempt(layout: RunLayout) -> int:
    """Return the number of a run's latest attempt, 0 if it has none.

    Raises:
        RunDirectoryError: its attempts cannot be listed.
    """
    numbers = reversed(list_numbers(layout.attempts))
    return next((number for number in numbers if os.path.exists(layout.claim(number))), 0)


def why_nothing_kept(layout: RunLayout) -> str | None:
    """Return why there is nothing in a run directory with which another run can begin; None if there is something.

    What was written after an earlier attempt than its latest one does not count, as in the run itself.
    """
    root = layout.root
    if not os.path.isdir(root):
        return f"there is no directory {root}"
    try:
        if find_saved(layout) is not None:
            return None
        kept, latest = list_numbers(layout.memory), find_latest_attempt(layout)
        if not kept:
            return f"{root} has no training state: there is nothing in its folder memory"
        if not latest:
            return f"{root} has no training state: there is no attempt of a run"
        if not read_kept_records(layout, latest):
            return (
                f"{root} has no training state of its latest attempt, {latest}: its run is at work, or was ended "
                "before one was complete; `hpc-elastic save` writes one of a run at work"
            )
    except RunDirectoryError as error:
        return error.message
    return None
