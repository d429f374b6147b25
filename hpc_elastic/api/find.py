"""Finds the run that a word means: a path, a job id, a name."""

from __future__ import annotations

import os

from hpc_elastic.errors import RunDirectoryError, UsageError
from hpc_elastic.rundir.index import find_entry, index_path
from hpc_elastic.rundir.layout import RunLayout

DEFAULT_ROOT = "hpc-elastic-runs"  # below the working directory, where the site names no other place


def find_run(wanted: str | None) -> RunLayout:
    """The run directory for a path, a job id, a name, a run id, or None for the latest run.

    The index is asked first for anything that is no path, then the default place below the working
    directory, for runs that the index lost.

    Raises:
        UsageError: nothing has this name.
        RunDirectoryError: the path exists and is no run directory.
    """
    if wanted is not None and (os.sep in wanted or is_run_directory(wanted) or wanted in (".", "..")):
        return require_run_directory(wanted)
    entry = find_entry(index_path(os.environ), wanted)
    if entry is not None:
        return RunLayout(entry.run_dir)
    path = _search_default_place(wanted)
    if path is not None:
        return RunLayout(path)
    if wanted is None:
        raise UsageError("there is no run yet", tip="start one with `hpc-elastic submit job.yaml`")
    raise UsageError(
        f"no run {wanted!r}: it is no run directory, and no run has that name or job id",
        tip="`hpc-elastic list` shows the runs",
    )


def is_run_directory(path: str) -> bool:
    """Whether there is a plan in it."""
    return os.path.isfile(RunLayout(path).plan)


def require_run_directory(path: str) -> RunLayout:
    """The layout of the run directory at a path.

    Raises:
        RunDirectoryError: there is none.
    """
    path = os.path.expanduser(path)
    if not os.path.isdir(path):
        raise RunDirectoryError(f"there is no directory {path}", tip="`hpc-elastic list` shows the runs")
    if not is_run_directory(path):
        raise RunDirectoryError(
            f"{path} is not a run directory: there is no plan.json in it", tip="`hpc-elastic list` shows the runs"
        )
    return RunLayout(path)


def _search_default_place(wanted: str | None) -> str | None:
    try:
        names = os.listdir(DEFAULT_ROOT)
    except OSError:
        return None
    paths = [os.path.join(DEFAULT_ROOT, name) for name in names]
    paths = [path for path in paths if is_run_directory(path) and _means(path, wanted)]
    return max(paths, key=lambda path: os.stat(RunLayout(path).plan).st_mtime, default=None)


def _means(path: str, wanted: str | None) -> bool:
    from hpc_elastic.rundir import store

    if wanted is None or wanted == os.path.basename(path):
        return True
    submission = store.read_json(RunLayout(path).submission)
    return isinstance(submission, dict) and wanted in (submission.get("job_id"), submission.get("name"))
