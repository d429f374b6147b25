"""The table of schedulers, with a row for each; what is submitted, asked and read by each is in its folder.

A folder has three modules, each with the functions of a protocol in `scheduler.protocol`:

    scheduler.py   SchedulerModule: submit a script, query its job, cancel it; for the login side
    step.py        StepModule: reads what its jobs are told, by variables and in their output; pure
    from_node.py   FromNodeModule: questions and requests of a node of a job
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, cast

from hpc_elastic.job_ids import is_local
from hpc_elastic.scheduler.allocation import Allocation

if TYPE_CHECKING:
    from hpc_elastic.scheduler.protocol import ArrayScheduler, FromNodeModule, SchedulerModule, StepModule

# Whether a job id has this scheduler's form; a job belongs to the first row that returns True.
SCHEDULERS: dict[str, Callable[[str], bool]] = {
    "local": is_local,
    "slurm": lambda _: True,  # numbers, and any other id that a record holds
}


def make_scheduler(name: str, *, run_dir: str | None = None, timeout_s: float = 30.0) -> ArrayScheduler:
    """Make the scheduler with this name, which the plan gives.

    Args:
        name: a key of `SCHEDULERS`.
        run_dir: the run directory, where the local scheduler reads the exit code of a job that another process started.
        timeout_s: the limit of a query or a cancellation.

    Raises:
        RunDirectoryError: there is no such scheduler, because the plan is of another version.
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
    """Return the module with which a node questions the scheduler of this job."""
    name = next(name for name, owns in SCHEDULERS.items() if owns(job_id))
    return cast("FromNodeModule", _module(name, "from_node"))


def derive_start(environ: Mapping[str, str]) -> tuple[str, int]:
    """Return the job's id and how often it was started again, from the environment of its script or step.

    Raises:
        AllocationError: there is no job.
    """
    return _step(environ).derive_start(environ)


def derive_allocation(environ: Mapping[str, str]) -> Allocation:
    """Return this node's place in the allocation, from the environment of an agent.

    Raises:
        AllocationError: there is no step, or it has not exactly one agent a node.
    """
    return _step(environ).derive_allocation(environ)


def find_cancelled_step(environ: Mapping[str, str], lines: Sequence[str]) -> str:
    """Return the step of this job that a person cancelled alone; empty if none was.

    Args:
        environ: the environment of the job's script.
        lines: the last lines of an agent's output, to which the scheduler writes, too.
    """
    return _step(environ).find_cancelled_step(lines)


def _step(environ: Mapping[str, str]) -> StepModule:
    steps = [cast("StepModule", _module(name, "step")) for name in SCHEDULERS]
    return next((step for step in steps if step.is_here(environ)), steps[-1])  # its error says what is missing


def _module(name: str, module: str) -> object:
    return import_module(f"hpc_elastic.scheduler.{name}.{module}")
