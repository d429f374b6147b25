"""Copies the files that git tracks in a run's working directory, so that the run keeps the code that it began with."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from hpc_elastic.errors import JobError, RunDirectoryError
from hpc_elastic.plan.launch_plan import LaunchPlan, SnapshotPlan
from hpc_elastic.printable import printable_line
from hpc_elastic.rundir import store
from hpc_elastic.rundir.layout import DEFAULT_ROOT

_SUBMODULE = "160000"  # the mode of a submodule in git's index
_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedFiles:
    """The files that git tracks below a directory, by their paths relative to it.

    `submodules` are those below it, whose files belong to another checkout; `untracked` are files that git neither
    tracks nor ignores, or folders without any that it tracks (`name/`); runs at their default place are none.
    """

    files: tuple[str, ...]
    submodules: tuple[str, ...]
    untracked: tuple[str, ...]


def list_tracked(directory: str) -> TrackedFiles:
    """Ask git which files it tracks below a directory.

    Raises:
        JobError: the directory is in no checkout of git, git says no, or there is no git here.
    """
    index = _git(directory, ["ls-files", "--cached", "--stage", "-z"])
    files, submodules = parse_index(index)
    no_runs = f"--exclude={os.path.basename(DEFAULT_ROOT)}/"
    folders = ("--directory", "--no-empty-directory")
    others = _git(directory, ["ls-files", "--others", *folders, "--exclude-standard", no_runs, "-z"])
    return TrackedFiles(files=files, submodules=submodules, untracked=tuple(filter(None, others.split("\0"))))


def parse_index(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Parse what `git ls-files --stage -z` prints: files, and submodules; in a merge a file has several entries."""
    files: dict[str, None] = {}
    submodules: dict[str, None] = {}
    for entry in filter(None, text.split("\0")):
        mode, _, rest = entry.partition(" ")
        (submodules if mode == _SUBMODULE else files)[rest.partition("\t")[2]] = None
    return tuple(files), tuple(submodules)


def find_problem(plan: LaunchPlan, snapshot: SnapshotPlan) -> str | None:
    """Return why the snapshot of a run would not do, None if it would."""
    try:
        tracked = list_tracked(snapshot.source)
    except JobError as error:
        return error.problems[0]
    scripts = (role.entrypoint.target for role in plan.roles if role.entrypoint.kind == "script")
    return next(filter(None, (_why_not_kept(script, snapshot.source, tracked) for script in scripts)), None)


def _why_not_kept(script: str, source: str, tracked: TrackedFiles) -> str | None:
    """Return why the snapshot of a directory would not have a script; one elsewhere, by its absolute path, need not."""
    target = os.path.normpath(script)
    real = os.path.relpath(os.path.realpath(os.path.join(source, target)), os.path.realpath(source))
    if os.path.isabs(target):
        inside = os.path.relpath(target, source)
        inside = real if _leads_out(inside) else inside  # by another name of the directory, which has a link above it
        if _leads_out(inside):
            return None
        return f"the script is named by its absolute path, which is no part of the snapshot; write {inside}"
    if any(target.startswith(f"{name}/") for name in tracked.submodules):
        return f"the script {target} is in a submodule of {source}, which is not copied"
    if _leads_out(target):
        return f"the script {target} is not below {source}, of which the snapshot is; let workdir be one above both"
    # A script below a link to a folder is there if git tracks both.
    is_below_link = real in tracked.files and any(target.startswith(f"{name}/") for name in tracked.files)
    links = (name for name in tracked.files if target == name or target.startswith(f"{name}/"))
    if _leads_out(real) and any(os.path.islink(os.path.join(source, name)) for name in links):
        return f"the script {target} is a link, or below one, that leads out of {source}, of which the snapshot is"
    if os.path.islink(os.path.join(source, target)) and real not in tracked.files:
        return f"git does not track {real} of {source}, to which the script {target} leads; `git add` it"
    if target not in tracked.files and not is_below_link:
        return f"git does not track the script {target} of {source}, so it would be missing; `git add` it"
    if not os.path.lexists(os.path.join(source, target)):
        return f"the script {target}, which git tracks, is not there in {source}, so it would be missing"
    return None


def _leads_out(path: str) -> bool:
    return os.path.isabs(path) or path.split(os.sep, 1)[0] == os.pardir


def describe_left_out(source: str) -> list[str]:
    """Return a line for each kind of file that a snapshot of a directory does not have."""
    tracked = list_tracked(source)
    missing = [name for name in tracked.files if not os.path.lexists(os.path.join(source, name))]
    links = [name for name in tracked.files if _is_link_out(source, name)]
    kinds = (
        (tracked.submodules, "the snapshot has no files of submodules"),
        (missing, "git tracks what is not there, and not in the snapshot"),
        (links, "links lead out of the snapshot, where relative ones find nothing"),
        (tracked.untracked, "the snapshot has no files that git does not track"),
    )
    return [f"{what}: {_name_some(names)}" for names, what in kinds if names]


def make_snapshot(snapshot: SnapshotPlan) -> None:
    """Copy the tracked files as they are now, changed or not.

    Raises:
        JobError: git cannot list them.
        RunDirectoryError: they cannot be copied; what was copied is for the caller to remove.
    """
    for name in list_tracked(snapshot.source).files:
        source, target = os.path.join(snapshot.source, name), os.path.join(snapshot.directory, name)
        if not os.path.lexists(source):
            continue
        with store.file_system_errors(target):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            try:
                shutil.copy2(source, target, follow_symlinks=False)
            except IsADirectoryError as error:
                raise RunDirectoryError(f"{source} is a folder where git tracks a file") from error
    with store.file_system_errors(snapshot.directory):
        os.makedirs(snapshot.directory, exist_ok=True)


def _is_link_out(source: str, name: str) -> bool:
    path = os.path.join(source, name)
    return os.path.islink(path) and _leads_out(os.path.normpath(os.path.join(os.path.dirname(name), os.readlink(path))))


def _name_some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(map(printable_line, names[:_NAMED])) + more


def _git(directory: str, arguments: Sequence[str]) -> str:
    """Return what git prints.

    Raises:
        JobError: there is no git, or it refuses.
    """
    # Variables such as GIT_DIR, which a hook has, would name another checkout.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", directory, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={**environ, "LC_ALL": "C"},
            check=False,
        )
    except OSError as error:
        raise JobError([f"cannot run git: {error.strerror}; a snapshot is of the files that it tracks"]) from error
    if done.returncode != 0:
        said = os.fsdecode(done.stderr).strip().splitlines() or [f"git ended with {done.returncode}"]
        if trust := next((line.strip() for line in said if "git config" in line and "safe.directory" in line), ""):
            raise JobError(
                [f"git does not read {directory}, which is another user's; if you trust what is in it: `{trust}`"]
            )
        what = "is no checkout of git, whose tracked files a snapshot copies"
        raise JobError([f"{directory} {what}: {said[0].removeprefix('fatal: ')}"])
    return os.fsdecode(done.stdout)
