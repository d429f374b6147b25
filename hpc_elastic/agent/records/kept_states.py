"""Finds the training states that were written to the run directory as an allocation ended, and removes old ones."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from dataclasses import replace

from hpc_elastic.codec import DecodeError, from_json
from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.state_records import OF_ANOTHER_RUN, KeptRecord, KeptState, StateVersion
from hpc_elastic.rundir.store import list_numbers, read_json


def read_kept(layout: RunLayout, ended: int) -> tuple[KeptState, ...]:
    """Return the states that were written after an attempt, the last of its allocation; of each, whose parts are there.

    Raises:
        RunDirectoryError: a record exists and cannot be read.
    """
    with contextlib.suppress(OSError):  # so that an NFS client asks anew for names that were not there some time ago
        os.listdir(layout.root)
    if ended not in list_numbers(layout.memory):
        return ()
    places: defaultdict[StateVersion, set[str]] = defaultdict(set)
    with contextlib.suppress(OSError):
        for name in os.listdir(layout.kept_states(ended)):
            stem, extension = os.path.splitext(name)
            if extension == ".json":
                with contextlib.suppress(DecodeError):
                    record = from_json(KeptRecord, read_json(layout.kept_record(ended, stem)))
                    places[record.version].add(record.place)
    return tuple(
        KeptState(ended=ended, version=version, places=frozenset(whose)) for version, whose in sorted(places.items())
    )


def read_kept_elsewhere(layout: RunLayout) -> tuple[KeptState, ...]:
    """Return the states that another run has written last, as older than all that this run saves.

    Raises:
        RunDirectoryError: a record exists and cannot be read.
    """
    latest = (list_numbers(layout.memory) or [0])[-1]
    return tuple(
        replace(state, ended=0, version=StateVersion(attempt=OF_ANOTHER_RUN, step=state.version.step))
        for state in read_kept(layout, latest)
    )


def rename_kept(layout: RunLayout, ended: int, latest: int) -> None:
    """Have states count as those after a later attempt; do nothing if there are such already, or if it cannot be."""
    with contextlib.suppress(OSError):
        os.rename(layout.kept_states(ended), layout.kept_states(latest))


def remove_kept(layout: RunLayout, *, before: float = float("inf")) -> None:
    """Remove the states that were written after attempts before this one; pass over what cannot be removed."""
    with contextlib.suppress(RunDirectoryError):
        for ended in list_numbers(layout.memory):
            if ended < before:
                _remove_folder(layout.kept_states(ended))
    with contextlib.suppress(OSError):
        os.rmdir(layout.memory)  # unless there is something in it


def _remove_folder(path: str) -> None:
    # The records first: what is left of a removal that was broken off does not count.
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(path), key=lambda name: not name.endswith(".json")):
            os.unlink(os.path.join(path, name))
        os.rmdir(path)
