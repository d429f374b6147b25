"""Makes a run directory completely, or leaves nothing behind."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import unicodedata
from datetime import datetime

from hpc_elastic.errors import FileSystemError, RunDirectoryError
from hpc_elastic.plan.launch_plan import LaunchPlan, dump_plan
from hpc_elastic.rundir import store
from hpc_elastic.rundir.layout import DEFAULT_ROOT, RunLayout

_SECRET_BYTES = 32
_LONGEST_NAME, _LONGEST_BYTES = 80, 192  # a file's name may have 255 bytes, and the time follows
_SHARED = stat.S_ISGID | stat.S_IWGRP
_TIP = "choose another --run-dir, or leave it out: every run gets a directory of its own then"


def run_identity(name: str, moment: datetime, token: str) -> str:
    """Return the run's id, which names its directory: `<name>-<timestamp>-<4 hex>`, safe as a file name.

    Args:
        name: the job's name, any text.
        moment: when it is submitted, in UTC.
        token: four hexadecimal digits that tell two submissions of a second apart.
    """
    composed = unicodedata.normalize("NFC", name)  # one name has one spelling, whoever has typed it
    safe = "-".join("".join(char if _may_stand(char) else " " for char in composed).split()).strip(".-")
    short = safe[:_LONGEST_NAME].encode()[:_LONGEST_BYTES].decode(errors="ignore") or "run"
    return f"{short}-{moment:%Y%m%d-%H%M%S}-{token}"


def _may_stand(char: str) -> bool:
    """Return whether a folder's name keeps this character: vowel signs and accents are marks, and belong to letters."""
    return char.isalnum() or char in "._-" or unicodedata.category(char).startswith("M")


def check_vacant(root: str) -> None:
    """Check that a new run could use this directory, which may not exist yet.

    Raises:
        RunDirectoryError: the path is no directory, or the directory is not empty.
        FileSystemError: this user cannot write there, or cannot make it.
    """
    with store.file_system_errors(root, "read"):
        if os.path.lexists(root) and os.listdir(root):
            raise RunDirectoryError(f"the run directory {root} is not empty", tip=_TIP)
    nearest = os.path.abspath(root)
    while not os.path.lexists(nearest):
        nearest = os.path.dirname(nearest)
    with store.file_system_errors(root):
        if (problem := _why_not_writable(nearest)) is not None:
            place = "" if nearest == os.path.abspath(root) else f" (of {nearest})"
            raise OSError(problem, f"{os.strerror(problem)}{place}")


def _why_not_writable(path: str) -> int | None:
    """Return the number of the error that a new entry of this directory would end with; None if it would not."""
    if not os.path.isdir(path):
        return errno.ENOTDIR
    if os.access(path, os.W_OK | os.X_OK, effective_ids=True):
        return None
    return errno.EROFS if os.statvfs(path).f_flag & os.ST_RDONLY else errno.EACCES


class CreatedRunDirectory:
    """A run directory that was just made, and can be removed as long as nothing uses it."""

    def __init__(self, layout: RunLayout, made_above: tuple[str, ...]) -> None:
        self.layout = layout
        self._made_above = made_above  # the root and its parents, as far as we made them; deepest first

    def remove(self) -> None:
        """Remove what was made here, and nothing else; what cannot be removed stays."""
        layout = self.layout
        made = (layout.job_yaml, layout.plan, layout.script, layout.secret, layout.requests, layout.function)
        for path in (*made, layout.submission):
            with contextlib.suppress(OSError):
                os.unlink(path)
        for path in (*_folders(layout), layout.snapshot):
            shutil.rmtree(path, ignore_errors=True)
        for path in self._made_above:
            with contextlib.suppress(OSError):  # another run may have been made in the same parent
                os.rmdir(path)


def create_run_directory(
    root: str, *, job_yaml: str, plan: LaunchPlan, script: str, function: bytes | None = None
) -> CreatedRunDirectory:
    """Make the directory with all files that a run needs before it is submitted.

    Args:
        root: the directory's path; it may exist if it is empty.
        job_yaml: the job file's text, kept as the user wrote it.
        plan: the launch plan, which becomes `plan.json`.
        script: the rendered script, which becomes `job.sh`.
        function: the content of `function.pkl`, if the workers are to call a function.

    Raises:
        RunDirectoryError: the directory is not empty, or cannot be made; what was made is removed again.
    """
    layout = RunLayout(root)
    made_above = _missing_directories(layout.root)
    created = CreatedRunDirectory(layout, made_above)
    try:
        _make_runs_folder(layout.root)
        with store.file_system_errors(layout.root):
            store.make_directory(layout.root)
            _occupy(layout)
    except RunDirectoryError:
        for path in made_above:
            with contextlib.suppress(OSError):
                os.rmdir(path)
        raise
    try:
        _fill(layout, job_yaml=job_yaml, plan=plan, script=script)
        if function is not None:
            store.write_bytes(layout.function, function)
    except BaseException:
        created.remove()
        raise
    return created


def _make_runs_folder(root: str) -> None:
    """Make the folder of all runs for a whole group, if it is missing in a directory that a group shares.

    Such a directory is writable for its group and has the setgid bit. The umask still counts. The sticky bit keeps the
    others from renaming a run's directory, which is its owner's alone.

    Raises:
        RunDirectoryError: the folder is there and another user's, who keeps it from us.
    """
    folder = os.path.dirname(root)
    if os.path.basename(folder) != DEFAULT_ROOT:
        folder = os.path.dirname(folder)  # of an array's task
    if os.path.basename(folder) != DEFAULT_ROOT:
        return
    above = os.path.dirname(folder)
    with contextlib.suppress(OSError):
        if os.stat(above).st_mode & _SHARED == _SHARED:
            os.mkdir(folder, store.DIRECTORY_MODE | stat.S_IRWXG | stat.S_ISVTX)
    if os.path.isdir(folder) and not os.access(folder, os.W_OK | os.X_OK):
        raise FileSystemError(
            f"cannot write {folder}: Permission denied",
            tip="choose another place with --run-dir; or its owner lets the group in: `chmod g+rwx,+t` of that folder",
        )


def _occupy(layout: RunLayout) -> None:
    """Take the directory for this run; of two submissions into one directory, only one succeeds."""
    check_vacant(layout.root)
    try:
        os.mkdir(layout.allocations, store.DIRECTORY_MODE)
    except FileExistsError:
        raise RunDirectoryError(f"the run directory {layout.root} was just taken by another run", tip=_TIP) from None


def _fill(layout: RunLayout, *, job_yaml: str, plan: LaunchPlan, script: str) -> None:
    for folder in _folders(layout):
        with store.file_system_errors(folder):
            store.make_directory(folder)
    store.write_bytes(layout.job_yaml, job_yaml.encode())
    store.write_bytes(layout.plan, dump_plan(plan).encode())
    store.write_bytes(layout.script, script.encode(), mode=0o700)
    store.write_bytes(layout.secret, os.urandom(_SECRET_BYTES))
    store.write_bytes(layout.requests, b"")


def _folders(layout: RunLayout) -> tuple[str, ...]:
    """Return the folders that exist from the start, so that `srun --output` can write its files."""
    return (layout.allocations, layout.agents, layout.nodes, layout.attempts)


def _missing_directories(path: str) -> tuple[str, ...]:
    """Return `path` and those of its parents that do not exist yet, deepest first."""
    missing = []
    while not os.path.lexists(path):
        missing.append(path)
        path = os.path.dirname(path)
    return tuple(missing)
