"""An array of runs at one moment, from its record and a snapshot of each of its tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.observe.snapshot import FORMAT_VERSION, Snapshot, snapshot_to_json
from hpc_elastic.rundir.layout import ArrayLayout, RunLayout
from hpc_elastic.rundir.record_file import ARRAY, read_record
from hpc_elastic.rundir.states import RunState

# The order in which states are counted: progress first, then failures.
_ORDER = (
    *(RunState.SUCCEEDED, RunState.RUNNING, RunState.REQUEUED, RunState.PENDING),
    *(RunState.FAILED, RunState.CANCELLED, RunState.UNKNOWN),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraySnapshot:
    """The state of an array at one moment; `tasks` are its runs, without those that cannot be read."""

    array: str
    name: str
    run_dir: str
    site: str
    scheduler: str
    job_id: str
    submitted: str
    limit: int | None
    size: int
    tasks: tuple[Snapshot, ...]

    @property
    def counts(self) -> dict[RunState, int]:
        """The number of tasks in each state."""
        found = Counter(task.state for task in self.tasks)
        return {state: found[state] for state in _ORDER if found[state]}

    @property
    def is_over(self) -> bool:
        """Whether every task has ended."""
        return len(self.tasks) == self.size and all(task.is_over for task in self.tasks)

    @property
    def exit_code(self) -> int | None:
        """0 if every task succeeded, else the exit code of the lowest task that did not; None before the end."""
        if not self.is_over:
            return None
        failed = (task for task in self.tasks if task.state is not RunState.SUCCEEDED)
        return next((1 if task.exit_code is None else task.exit_code for task in failed), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayFacts:
    """The contents of an array's record, which never change."""

    layout: ArrayLayout
    record: Mapping[str, Any]

    @property
    def runs(self) -> list[tuple[RunLayout, str]]:
        """The layout and the scheduler's name of each task."""
        scheduler = str(self.record.get("scheduler", ""))
        return [(self.layout.task(number), scheduler) for number in range(len(self.record["tasks"]))]


def read_array(layout: ArrayLayout) -> ArrayFacts:
    """Read the array's record.

    Raises:
        RunDirectoryError: there is no record, or it is not that of an array.
    """
    record = read_record(layout.record, ARRAY, tip="each of its tasks is a run directory beside it")
    if record is None:
        raise RunDirectoryError(f"{layout.root} is no array of runs: there is no array.json in it")
    return ArrayFacts(layout=layout, record=record)


def make_array_snapshot(facts: ArrayFacts, tasks: Sequence[Snapshot | None]) -> ArraySnapshot:
    """Combine the record and the snapshots of the tasks; pure."""
    record = facts.record
    return ArraySnapshot(
        array=str(record.get("array", "")),
        name=str(record.get("name", "")),
        run_dir=facts.layout.root,
        site=str(record.get("site", "")),
        scheduler=str(record.get("scheduler", "")),
        job_id=str(record.get("job_id", "")),
        submitted=str(record.get("submitted", "")),
        limit=record.get("limit"),
        size=len(record["tasks"]),
        tasks=tuple(task for task in tasks if task is not None),
    )


def array_to_json(snapshot: ArraySnapshot) -> dict[str, Any]:
    """Return the object of `status --json` for an array; keys are only ever added."""
    return {
        "format_version": FORMAT_VERSION,
        "array": snapshot.array,
        "name": snapshot.name,
        "run_dir": snapshot.run_dir,
        "site": snapshot.site,
        "scheduler": snapshot.scheduler,
        "job_id": snapshot.job_id,
        "submitted": snapshot.submitted,
        "limit": snapshot.limit,
        "states": {state.value: number for state, number in snapshot.counts.items()},
        "exit_code": snapshot.exit_code,
        "tasks": [snapshot_to_json(task) for task in snapshot.tasks],
    }


def explained_array_to_json(snapshot: ArraySnapshot) -> dict[str, Any]:
    """Return the object of `explain --json` for an array; `tasks` has what one line about each task says."""
    whole = array_to_json(snapshot)
    keys = (
        "job_id",
        "array_task",
        "parameters",
        "run_dir",
        "state",
        "exit_code",
        "reason",
        "cause",
        "root_cause",
        "attempts",
    )
    return {**whole, "tasks": [{key: task[key] for key in keys} for task in whole["tasks"]]}
