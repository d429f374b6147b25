"""Finds the run that a user's argument names (a path, a job id, a name), or the default run without an argument.

Theory of operation. Without an argument the default is the run directory that we are in, else the latest run of this
folder: one that was submitted in it, or lies in its `hpc-elastic-runs`; else the run directory that this folder lies
in, as that of a rank's logs does. Of several runs with a name, those of this folder are preferred. A verb that only
reads may take the latest run of all folders if this one has none, and then has to say so; a run of another folder is
never stopped unless it was named. No run stands in for a newer one whose directory is gone while its job may run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from hpc_elastic.api.gone_runs import check_none_is_meant, not_found
from hpc_elastic.api.identity import owner_of, working_directory
from hpc_elastic.api.known_runs import (
    enclosing_run,
    find_by_later_job,
    find_task,
    is_array,
    is_of_this_folder,
    is_run_directory,
    known_runs,
)
from hpc_elastic.errors import RunDirectoryError, UsageError
from hpc_elastic.observe.facts import find_gone
from hpc_elastic.rundir.index import IndexEntry
from hpc_elastic.rundir.layout import ArrayLayout, RunLayout

NONE_HERE = "no run was submitted in this folder"


def find_run(wanted: str | None, *, say: Callable[[str], None] | None = None) -> RunLayout:
    """Return the layout of the run that a path, job id, name or run id means; for None the latest of this folder.

    Args:
        wanted: the user's argument.
        say: takes a line about the run if it is of another folder; None: runs of other folders are not taken.

    Raises:
        UsageError: no run has this name, or it is the name of a whole array.
        RunDirectoryError: the path exists and is no run directory, an array's record cannot be read, or the directory
            of the run was moved or removed.
    """
    found = find_run_or_array(wanted, say=say)
    if isinstance(found, ArrayLayout):
        from hpc_elastic.observe.array import read_array

        record = read_array(found).record
        name = record.get("job_id") or found.root
        raise UsageError(
            f"{wanted or 'the latest submission'} is an array of {len(record['tasks'])} runs, expected one run",
            tip=f"name a task of it, such as {name}_0; `hpc-elastic status {name}` lists them",
        )
    return found


def find_run_or_array(wanted: str | None, *, say: Callable[[str], None] | None = None) -> RunLayout | ArrayLayout:
    """Return the run as `find_run` does, or an array of runs by its folder, job id, name or id.

    `<array>_<task>` is one of its runs.

    Raises:
        UsageError: nothing has this name.
        RunDirectoryError: the path exists and is neither, or the directory of the run was moved or removed.
    """
    if (directory := find_directory(wanted)) is not None:
        return directory
    if wanted is not None:
        if (entry := _find_entry(wanted)) is not None:
            check_none_is_meant(wanted, entry)
        found = _find_task(wanted) or find_by_later_job(wanted) if entry is None else layout_of(entry)
        if found is None:
            raise not_found(wanted)
        if (gone := find_gone(found.root)) is not None:  # of a task: of a run the index tells
            raise gone
        return found
    latest: IndexEntry | None = None
    for entry in known_runs():
        if is_of_this_folder(entry):
            check_none_is_meant(None, entry)
            return layout_of(entry)
        latest = latest or entry
    check_none_is_meant(None, None)
    if (above := _run_around_here()) is not None:
        return above
    if latest is None:
        raise UsageError("there is no run yet", tip="start one with `hpc-elastic submit job.yaml`")
    if say is None:
        raise UsageError(f"{NONE_HERE}; the latest of all is in {latest.run_dir}", tip="name a run")
    say(f"{NONE_HERE}; this is the latest of all, in {latest.run_dir}")
    return layout_of(latest)


def _run_around_here() -> RunLayout | None:
    here = working_directory()
    above = None if here is None else enclosing_run(here)
    return None if above is None else RunLayout(above)


def _find_known(wanted: str) -> RunLayout | ArrayLayout | None:
    """Return the run, array or task with this name or id, one of this folder if there is one; None if none has it."""
    entry = _find_entry(wanted)
    return _find_task(wanted) if entry is None else layout_of(entry)


def _find_entry(wanted: str) -> IndexEntry | None:
    known = list(known_runs(wanted))
    return next(filter(is_of_this_folder, known), known[0]) if known else None


def _find_task(wanted: str) -> RunLayout | None:
    task = find_task(wanted)
    return None if task is None else ArrayLayout(task[0].run_dir).task(task[1])


def name_for_commands(layout: RunLayout | ArrayLayout, job_id: str | None) -> str:
    """Return the job id if it means this run here, else its directory: a moved run, another user's or cluster's."""
    found = _find_known(job_id) if job_id else None
    is_same = found is not None and os.path.realpath(found.root) == os.path.realpath(layout.root)
    return job_id if is_same and job_id else layout.root


def find_to_stop(wanted: str | None) -> RunLayout | ArrayLayout | Sequence[IndexEntry]:
    """Return the one run or array to stop; if it is ambiguous, all candidates, newest first, for a person to choose.

    Candidates of this folder are preferred to all others, with an argument as without one.

    Raises:
        UsageError: nothing has this name.
        RunDirectoryError: the path exists and is neither a run directory nor an array's folder, or the directory of
            a run that may be meant was moved or removed.
    """
    if (directory := find_directory(wanted)) is not None:
        return directory
    known = list(known_runs(wanted))
    if not known or (wanted is not None and all(entry.name != wanted for entry in known)):
        return find_run_or_array(wanted)
    here = [entry for entry in known if is_of_this_folder(entry)]
    check_none_is_meant(wanted, here[0] if here else known[0] if wanted is not None else None)
    if here:
        return here
    above = _run_around_here() if wanted is None else None
    return known if above is None else above


def find_directory(wanted: str | None) -> RunLayout | ArrayLayout | None:
    """Return the run directory or array's folder that is named by its path, or that is the working directory.

    Raises:
        RunDirectoryError: the path is neither.
    """
    here = working_directory()
    if wanted is None:
        if here is None:
            return None
        return ArrayLayout(here) if is_array(here) else RunLayout(here) if is_run_directory(here) else None
    if os.sep in wanted or wanted in (".", "..") or (here is not None and is_run_directory(wanted)):
        given = os.path.expanduser(wanted)
        return ArrayLayout(given) if is_array(given) else require_run_directory(wanted)
    return None


def layout_of(entry: IndexEntry) -> RunLayout | ArrayLayout:
    """Return the layout of the run or array in a directory."""
    return ArrayLayout(entry.run_dir) if entry.tasks else RunLayout(entry.run_dir)


def require_run_directory(path: str) -> RunLayout:
    """Return the layout of the run directory at a path.

    Raises:
        RunDirectoryError: there is none.
    """
    path = os.path.expanduser(path)
    _check_permission(RunLayout(path))
    if not os.path.isdir(path):
        raise RunDirectoryError(f"there is no directory {path}", tip="`hpc-elastic list` shows the runs")
    if is_array(path):
        raise RunDirectoryError(
            f"{path} is the folder of an array of runs, expected the directory of one run",
            tip=f"name a task of it, such as {os.path.join(path, '0')}",
        )
    if not is_run_directory(path):
        raise RunDirectoryError(
            f"{path} is not a run directory: there is no plan.json in it", tip="`hpc-elastic list` shows the runs"
        )
    return RunLayout(path)


def _check_permission(layout: RunLayout) -> None:
    """Check the permission to read the directory, to tell another user's run from no run.

    Raises:
        RunDirectoryError: this user may not read the directory.
    """
    try:
        os.stat(layout.plan)
    except PermissionError as error:
        raise RunDirectoryError(
            f"{layout.root}: permission denied",
            tip=f"{owner_of(layout.root)} may look at it, and copy it for others, all but its `secret`",
        ) from error
    except OSError:
        return
