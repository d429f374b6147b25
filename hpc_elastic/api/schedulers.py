"""The scheduler of a run, by the name in its plan: to give it work, for one look, or to watch a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpc_elastic.scheduler.protocol import ArrayScheduler, JobQuery


LOOK_TIMEOUT_S = 1.0  # a look says what the run directory says within 2 s, whatever the controller does


def make_scheduler(name: str, *, run_dir: str | None = None, timeout_s: float = 30.0) -> ArrayScheduler:
    """The scheduler with this name.

    Args:
        name: `slurm` or `local`.
        run_dir: where the local scheduler finds how a job ended that another process started.
        timeout_s: for a question to Slurm, or a cancellation.

    Raises:
        RunDirectoryError: there is no such scheduler; the plan is of another version.
    """
    if name == "slurm":
        from hpc_elastic.scheduler.slurm import SlurmScheduler

        return SlurmScheduler(timeout_s=timeout_s)
    if name == "local":
        from hpc_elastic.scheduler.local import LocalScheduler

        return LocalScheduler(run_dir=run_dir)
    from hpc_elastic.errors import RunDirectoryError

    raise RunDirectoryError(
        f"the plan names the scheduler {name!r}, expected slurm or local",
        tip="use the version of hpc_elastic that submitted the run",
    )


def query_once(name: str, run_dir: str) -> JobQuery:
    """Whom to ask for one look at a run: Slurm has `LOOK_TIMEOUT_S` to answer."""
    return make_scheduler(name, run_dir=run_dir, timeout_s=LOOK_TIMEOUT_S)


def query_again(name: str, run_dir: str) -> JobQuery:
    """Whom to ask while a run is watched: the watch goes on while Slurm does not answer."""
    return in_background(make_scheduler(name, run_dir=run_dir))


def in_background(scheduler: JobQuery) -> JobQuery:
    """The scheduler, or one that asks it in the background where its answer can take long."""
    if getattr(scheduler, "name", "") != "slurm":
        return scheduler
    from hpc_elastic.observe.background import BackgroundQuery

    return BackgroundQuery(scheduler)
