"""Names submitit's files of a job: some are beside our run directory, some in it."""

from __future__ import annotations

import os
from pathlib import Path

from submitit.core import utils

from hpc_elastic.observe.rank_output import output_path
from hpc_elastic.rundir.layout import RunLayout


class RunPaths(utils.JobPaths):
    """The paths of one task of a job, in one attempt of its run.

    Args:
        folder: the folder as the executor was given it, which may contain `%j` and the like.
        job_id: the job's id.
        task_id: the global rank.
        layout: the layout of the run directory.
        attempt: the attempt whose output and result are meant.
        pickle: the pickle that the workers load; None means the name that submitit gives it, which links to that file.
    """

    def __init__(
        self,
        folder: Path | str,
        job_id: str,
        task_id: int | None,
        *,
        layout: RunLayout,
        attempt: int,
        pickle: str | None = None,
    ) -> None:
        super().__init__(folder, job_id=job_id, task_id=task_id)
        self._layout = layout
        self._attempt = attempt
        self._pickle = pickle

    @property
    def submitted_pickle(self) -> Path:
        """The pickle of the function and its arguments, or of what a checkpoint made of them."""
        return Path(self._pickle) if self._pickle else super().submitted_pickle

    @property
    def result_pickle(self) -> Path:
        """The pickle of what the function returned or raised in this attempt."""
        return Path(self._layout.submitit_result(self._attempt, self.task_id))

    @property
    def stdout(self) -> Path:
        """The file of the rank's standard output, or of all ranks of its node with `logs.per: node`."""
        return Path(output_path(self._layout, self._attempt, self.task_id, is_stderr=False))

    @property
    def stderr(self) -> Path:
        """The file of the rank's standard error, or of all ranks of its node with `logs.per: node`."""
        return Path(output_path(self._layout, self._attempt, self.task_id, is_stderr=True))


def run_link(paths: utils.JobPaths) -> Path:
    """Return the path of the link in the job's folder that leads to its run directory."""
    return paths.folder / f"{paths.job_id}_run"


def link_run(paths: utils.JobPaths, layout: RunLayout, pickle: str) -> None:
    """Make the links by which a job is found again from its folder and its id.

    They take the place of those of an earlier job of the same id, on another cluster or from before Slurm's ids began
    anew.
    """
    paths.folder.mkdir(parents=True, exist_ok=True)
    folder = os.path.realpath(paths.folder)  # where `..` in a link leads to, also if the folder itself is a link
    for link, target in ((paths.submitted_pickle, pickle), (run_link(paths), layout.root)):
        new = link.with_name(f".{link.name}.{os.getpid()}")
        new.symlink_to(os.path.relpath(os.path.realpath(target), folder))
        new.replace(link)
