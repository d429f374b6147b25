"""Finds the training states that people had written while a run went on, and removes old ones.

Each has a folder of its own, with a manifest that is written when all files are there: a folder without one does not
count, whatever is in it. So a save that is broken off takes nothing from the one before.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from hpc_elastic.codec import DecodeError, from_json
from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.state_records import KeptRecord, SaveManifest, StateVersion
from hpc_elastic.rundir.store import file_system_errors, find_json

_FOLDER = re.compile(r"(\d+)-[0-9a-f]{8}", re.ASCII)
_FILE = re.compile(r"(\d{5,}|all-.+)\.(json|state)|manifest\.json|\..+\.tmp", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedStates:
    """A complete save: the name of its folder, and its manifest."""

    name: str
    manifest: SaveManifest

    @property
    def newest(self) -> StateVersion:
        """Return the newest of its versions."""
        return max(state.version for state in self.manifest.states)


def save_name(step: int, request: str) -> str:
    """Return the name of the folder for the state of a request, of which no other save ever has a file."""
    return f"{step}-{re.sub('[^0-9a-f]', '0', request.lower())[:8].ljust(8, '0')}"


def list_saves(layout: RunLayout) -> list[str]:
    """Return the names of the folders of saves, complete or not.

    Raises:
        RunDirectoryError: they cannot be listed.
    """
    with file_system_errors(layout.saves, "read"):
        try:
            return sorted(filter(_FOLDER.fullmatch, os.listdir(layout.saves)))
        except (FileNotFoundError, NotADirectoryError):
            return []


def find_saved(layout: RunLayout) -> SavedStates | None:
    """Return the newest complete save, None if there is none.

    Raises:
        RunDirectoryError: they cannot be listed.
    """
    found = [saved for name in list_saves(layout) if (saved := _read(layout, name)) is not None]
    return max(found, key=lambda saved: (saved.manifest.ended, saved.newest, saved.manifest.time), default=None)


def _read(layout: RunLayout, name: str) -> SavedStates | None:
    with contextlib.suppress(DecodeError, RunDirectoryError):  # one that is damaged is none
        manifest = from_json(SaveManifest, find_json(layout.save_manifest(name)))
        if manifest.states and manifest.files and all(map(_is_sound, manifest.files.values())):
            return SavedStates(name=name, manifest=manifest)
    return None


def _is_sound(record: KeptRecord) -> bool:
    return min(record.attempt, record.step) >= 0 and 0 < record.length < 2**62


def why_incomplete(layout: RunLayout, name: str, manifest: SaveManifest) -> str | None:
    """Return why a save is not all there, seen from this machine; None if it is."""
    for stem, record in manifest.files.items():
        path = layout.state_in(layout.saved_states(name), stem)
        try:
            size = os.stat(path).st_size
        except OSError as error:
            return f"{path} is not there for the head: {error.strerror}"
        if size != record.length:
            return f"{path} has {size} bytes, expected {record.length}"
    return None


def remove_saves(layout: RunLayout, *, but: str | None = None) -> None:
    """Remove all saves but one, complete or not; pass over what cannot be removed, and over what is not ours."""
    with contextlib.suppress(RunDirectoryError):
        for name in list_saves(layout):
            if name != but:
                remove_save(layout, name)


def remove_incomplete_saves(layout: RunLayout, *, request: str | None = None) -> None:
    """Remove the saves that have no manifest, of one request or, where none is under way, of all."""
    whose = "" if request is None else save_name(0, request)[1:]
    with contextlib.suppress(RunDirectoryError):
        for name in list_saves(layout):
            if name.endswith(whose) and not os.path.lexists(layout.save_manifest(name)):
                remove_save(layout, name)


def remove_parts(folder: str, names: Iterable[str]) -> None:
    """Remove what one node has written of a save that nobody wants any more; pass over what cannot be removed."""
    for name in names:
        for path in (RunLayout.record_in(folder, name), RunLayout.state_in(folder, name)):
            with contextlib.suppress(OSError):
                os.unlink(path)
    with contextlib.suppress(OSError):
        os.rmdir(folder)  # unless others have something in it


def remove_save(layout: RunLayout, name: str) -> None:
    """Remove a save, its manifest first: what is left of a removal that was broken off does not count."""
    folder = layout.saved_states(name)
    if os.path.islink(folder) or os.path.islink(layout.saves):  # somebody has moved it
        return
    with contextlib.suppress(OSError):
        for file in sorted(filter(_FILE.fullmatch, os.listdir(folder)), key=lambda file: file != "manifest.json"):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(folder, file))
        os.rmdir(folder)
