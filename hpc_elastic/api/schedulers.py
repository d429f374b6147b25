"""The scheduler of a run, by the name in its plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpc_elastic.scheduler.protocol import ArrayScheduler


def make_scheduler(name: str, *, run_dir: str | None = None) -> ArrayScheduler:
    """The scheduler with this name.

    Args:
        name: `slurm` or `local`.
        run_dir: where the local scheduler finds how a job ended that another process started.

    Raises:
        RunDirectoryError: there is no such scheduler; the plan is of another version.
    """
    if name == "slurm":
        from hpc_elastic.scheduler.slurm import SlurmScheduler

        return SlurmScheduler()
    if name == "local":
        from hpc_elastic.scheduler.local import LocalScheduler

        return LocalScheduler(run_dir=run_dir)
    from hpc_elastic.errors import RunDirectoryError

    raise RunDirectoryError(
        f"the plan names the scheduler {name!r}, expected slurm or local",
        tip="use the version of hpc_elastic that submitted the run",
    )
