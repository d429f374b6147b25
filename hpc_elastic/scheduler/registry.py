"""Which schedulers there are, a row for each; all that is special about one stands in its folder.

A folder has three modules, each with what the protocol of that name in `scheduler.protocol` asks for:

    scheduler.py   SchedulerModule: hand a script over, ask what became of it, cancel it; for the login side
    step.py        StepModule: what the environment of its jobs says; pure
    from_node.py   FromNodeModule: what a node of a job asks, or has done
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, cast

from hpc_elastic.job_ids import is_local
from hpc_elastic.scheduler.allocation import Allocation

if TYPE_CHECKING:
    from hpc_elastic.scheduler.protocol import ArrayScheduler, FromNodeModule, SchedulerModule, StepModule

# Whether a job id is of this scheduler's shape; the first row that says so has the job.
SCHEDULERS: dict[str, Callable[[str], bool]] = {
    "local": is_local,
    "slurm": lambda _: True,  # numbers, and whatever else a record of its holds
}


def make_scheduler(name: str, *, run_dir: str | None = None, timeout_s: float = 30.0) -> ArrayScheduler:
    """The scheduler with this name, which a plan has.

    Args:
        name: a key of `SCHEDULERS`.
        run_dir: where the local scheduler finds how a job ended that another process started.
        timeout_s: for a question, or a cancellation.

    Raises:
        RunDirectoryError: there is no such scheduler; the plan is of another version.
    """
    if name not in SCHEDULERS:
        from hpc_elastic.errors import RunDirectoryError

        raise RunDirectoryError(
            f"the plan names the scheduler {name!r}, expected {' or '.join(sorted(SCHEDULERS, reverse=True))}",
            tip="use the version of hpc_elastic that submitted the run",
        )
    module = cast("SchedulerModule", _module(name, "scheduler"))
    return module.make_scheduler(run_dir=run_dir, timeout_s=timeout_s)


def from_node(job_id: str) -> FromNodeModule:
    """What a node can ask the scheduler of this job."""
    name = next(name for name, owns in SCHEDULERS.items() if owns(job_id))
    return cast("FromNodeModule", _module(name, "from_node"))


def derive_start(environ: Mapping[str, str]) -> tuple[str, int]:
    """The job, and how often its scheduler has started it again: in the environment of its script or of a step.

    Raises:
        AllocationError: there is no job.
    """
    return _step(environ).derive_start(environ)


def derive_allocation(environ: Mapping[str, str]) -> Allocation:
    """This node's place, from the environment of an agent.

    Raises:
        AllocationError: there is no place, or it is not one agent a node.
    """
    return _step(environ).derive_allocation(environ)


def _step(environ: Mapping[str, str]) -> StepModule:
    steps = [cast("StepModule", _module(name, "step")) for name in SCHEDULERS]
    return next((step for step in steps if step.is_here(environ)), steps[-1])  # whose error says what is missing


def _module(name: str, module: str) -> object:
    return import_module(f"hpc_elastic.scheduler.{name}.{module}")
