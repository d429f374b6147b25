"""Makes the object that answers queries about a run's jobs: for one look, or to watch the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_elastic.scheduler.registry import make_scheduler

if TYPE_CHECKING:
    from hpc_elastic.scheduler.protocol import JobQuery

# A look says what the run directory says within 4 s, whatever the controller does. Where a backup controller works in
# the place of a machine without power, each command tries that one first, for TCPTimeout: 2 s (22.05 to 26.05).
LOOK_TIMEOUT_S = 3.0


def query_once(name: str, run_dir: str) -> JobQuery:
    """Make the query object for one look at a run: Slurm has `LOOK_TIMEOUT_S` to answer."""
    return make_scheduler(name, run_dir=run_dir, timeout_s=LOOK_TIMEOUT_S)


def query_again(name: str, run_dir: str) -> JobQuery:
    """Make the query object for a watched run: the watch goes on while Slurm does not answer."""
    return in_background(make_scheduler(name, run_dir=run_dir))


def in_background(scheduler: JobQuery) -> JobQuery:
    """Return the scheduler, wrapped to be asked in the background where its answer can take long."""
    if getattr(scheduler, "answers_at_once", True):  # as for a foreground script, which is a child of this process
        return scheduler
    from hpc_elastic.observe.background import BackgroundQuery

    return BackgroundQuery(scheduler)
