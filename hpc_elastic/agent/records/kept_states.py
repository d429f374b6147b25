"""Finds the training states that were written to the run directory as an allocation ended, and removes old ones."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import defaultdict
from dataclasses import replace

from hpc_elastic.codec import to_json
from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.rundir.kept_records import find_latest_attempt, read_kept_records, read_pinned
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import utc_text
from hpc_elastic.rundir.saved_states import find_saved
from hpc_elastic.rundir.state_records import OF_ANOTHER_RUN, KeptRecord, KeptState, SaveManifest, StateVersion
from hpc_elastic.rundir.store import list_numbers, write_json


def read_kept(layout: RunLayout, ended: int) -> tuple[KeptState, ...]:
    """Return the states that were written after an attempt, the last of its allocation; of each, whose parts are there.

    What a person had written while it went on counts, if that was its latest attempt then.

    Args:
        layout: the run directory.
        ended: the attempt.

    Raises:
        RunDirectoryError: a record exists and cannot be read.
    """
    with contextlib.suppress(OSError):  # so that an NFS client asks anew for names that were not there some time ago
        os.listdir(layout.root)
    places: defaultdict[StateVersion, set[str]] = defaultdict(set)
    for record in (*read_kept_records(layout, ended).values(), *read_pinned(layout, ended)):
        places[record.version].add(record.place)
    saved = find_saved(layout)
    if saved is not None and saved.manifest.ended == ended:
        for record in saved.manifest.files.values():
            places[record.version].add(record.place)
    return tuple(
        KeptState(ended=ended, version=version, places=frozenset(whose)) for version, whose in sorted(places.items())
    )


def pin_elsewhere(layout: RunLayout, other: RunLayout) -> tuple[KeptState, ...]:
    """Return the states that another run has written, as older than all that this run saves, and write which they are.

    Of what was kept when an allocation ended, that of its latest attempt counts; what a person had written while it
    went on counts whatever its latest attempt is, and before others of its step. The other run may go on meanwhile, and
    save the same step again in another attempt. So each rank takes only the file that has the length and the checksum
    that it has now, or all load from disk.

    Raises:
        RunDirectoryError: a record exists and cannot be read, or it cannot be written which they are.
    """
    found = []
    for step, files in sorted(_read_elsewhere(other).items()):
        pinned = {name: replace(record, attempt=OF_ANOTHER_RUN) for name, record in files.items()}
        manifest = SaveManifest(request="", by="", time=utc_text(time.time()), ended=0, states=(), files=pinned)
        write_json(layout.elsewhere(0, step), to_json(manifest))
        places = frozenset(record.place for record in pinned.values())
        found.append(KeptState(ended=0, version=StateVersion(attempt=OF_ANOTHER_RUN, step=step), places=places))
    return tuple(found)


def _read_elsewhere(other: RunLayout) -> dict[int, dict[str, KeptRecord]]:
    """Return the records of the states with which another run can begin, by step and by the name of their files."""
    kept: defaultdict[StateVersion, dict[str, KeptRecord]] = defaultdict(dict)
    for name, record in read_kept_records(other, find_latest_attempt(other)).items():
        kept[record.version][name] = record
    found = {version.step: files for version, files in sorted(kept.items())}
    if (saved := find_saved(other)) is not None:
        for step in {record.step for record in saved.manifest.files.values()}:
            found[step] = {name: each for name, each in saved.manifest.files.items() if each.step == step}
    return found


def rename_kept(layout: RunLayout, ended: int, latest: int) -> None:
    """Have states count as those after a later attempt; do nothing if there are such already, or if it cannot be."""
    with contextlib.suppress(OSError):
        os.rename(layout.kept_states(ended), layout.kept_states(latest))
    with contextlib.suppress(RunDirectoryError):
        saved = find_saved(layout)
        if saved is not None and saved.manifest.ended == ended:
            write_json(layout.save_manifest(saved.name), to_json(replace(saved.manifest, ended=latest)))


def remove_kept(layout: RunLayout, *, before: float = float("inf")) -> None:
    """Remove the states that were written after attempts before this one; pass over what cannot be removed."""
    with contextlib.suppress(RunDirectoryError):
        for ended in list_numbers(layout.memory):
            if ended < before:
                _remove_folder(layout.kept_states(ended))
    with contextlib.suppress(OSError):
        os.rmdir(layout.memory)  # unless there is something in it


def _remove_folder(path: str) -> None:
    if os.path.islink(path):  # somebody has moved it: what is there is not ours
        return
    # The records first: what is left of a removal that was broken off does not count.
    with contextlib.suppress(OSError):
        for name in sorted(filter(_is_ours, os.listdir(path)), key=lambda name: not name.endswith(".json")):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(path, name))
        os.rmdir(path)


def _is_ours(name: str) -> bool:
    """Return whether a file has the name of a record or a state, or of one whose writer was killed."""
    return re.fullmatch(r"(\d{5,}|all-.+)\.(json|state)|elsewhere-\d+\.json|\..+\.tmp", name, re.ASCII) is not None
