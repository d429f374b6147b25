"""Makes the folder of an array with all its run directories, or leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable

from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.rundir import store
from hpc_elastic.rundir.create import CreatedRunDirectory
from hpc_elastic.rundir.layout import ArrayLayout


class CreatedArray:
    """An array's folder that was just made, and can be removed as long as nothing uses it."""

    def __init__(self, layout: ArrayLayout) -> None:
        self.layout = layout
        self.runs: list[CreatedRunDirectory] = []

    def remove(self) -> None:
        """Remove what was made here, and nothing else; what cannot be removed stays."""
        for path in (self.layout.record, self.layout.job_yaml, self.layout.script):
            with contextlib.suppress(OSError):
                os.unlink(path)
        shutil.rmtree(self.layout.snapshot, ignore_errors=True)
        for run in reversed(self.runs):  # the first one made the folders above
            run.remove()


def create_array(
    layout: ArrayLayout, *, job_yaml: str, script: str, runs: Iterable[Callable[[], CreatedRunDirectory]]
) -> CreatedArray:
    """Make the folder with all files that an array needs before it is submitted.

    Args:
        layout: the array's paths; the folder may exist if it is empty.
        job_yaml: the job file's text, kept as the user wrote it.
        script: the script for the scheduler, which becomes `job.sh`.
        runs: functions, each of which makes the next task's run directory.

    Raises:
        RunDirectoryError: the folder is not empty, or cannot be made; what was made is removed again.
    """
    with store.file_system_errors(layout.root, "read"):
        if os.path.isdir(layout.root) and os.listdir(layout.root):
            raise RunDirectoryError(
                f"the folder {layout.root} is not empty",
                tip="choose another --run-dir, or leave it out: every array gets a folder of its own then",
            )
    created = CreatedArray(layout)
    try:
        for make in runs:
            created.runs.append(make())
        store.write_bytes(layout.job_yaml, job_yaml.encode())
        store.write_bytes(layout.script, script.encode(), mode=0o700)
    except BaseException:
        created.remove()
        raise
    return created
