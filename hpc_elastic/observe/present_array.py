"""Lays arrays of runs out for people: plain text, and rich where a terminal draws it."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from hpc_elastic.job_ids import array_task_id
from hpc_elastic.observe.array import ArraySnapshot
from hpc_elastic.observe.narrate import describe_counts, describe_parameters, describe_state
from hpc_elastic.observe.present import columns_of
from hpc_elastic.observe.snapshot import Snapshot
from hpc_elastic.observe.text import readable_time, state_style, wrap
from hpc_elastic.printable import printable_line
from hpc_elastic.rundir.states import RunState

if TYPE_CHECKING:
    from rich.console import RenderableType

_LABEL_WIDTH = 15
_HEADER = ("TASK", "STATE", "PARAMETERS", "ATTEMPTS", "CAUSE")
_STATE = 1


def array_rows(snapshot: ArraySnapshot, run: str | None = None) -> list[tuple[str, str]]:
    """Return the label and the text of each line of an array's `status`, above its tasks.

    Args:
        snapshot: the array.
        run: names the array in commands, by its job id or its folder; by default its job id.
    """
    limit = f", at most {snapshot.limit} at a time" if snapshot.limit else ""
    code = f", exit code {snapshot.exit_code}" if snapshot.exit_code is not None else ""
    rows = [
        ("state", describe_counts(snapshot.counts) + code),
        ("job", f"{snapshot.job_id} on {snapshot.site}{limit}"),
        ("submitted", readable_time(snapshot.submitted)),
        ("run directory", snapshot.run_dir),
        ("next", f"hpc-elastic {_next(snapshot, run)}"),
    ]
    return [(label, printable_line(text)) for label, text in rows]


def plain_array(snapshot: ArraySnapshot, run: str | None = None) -> str:
    """Return `status` of an array as text: the whole, then a line for each task."""
    lines = [
        printable_line(snapshot.name),
        *(f"{label:<{_LABEL_WIDTH}}{text}" for label, text in array_rows(snapshot, run)),
    ]
    return "\n".join([*lines, "", *columns_of([_HEADER, *_task_rows(snapshot)])])


def rich_array(snapshot: ArraySnapshot, run: str | None = None) -> RenderableType:
    """Return `status` of an array for a terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in array_rows(snapshot, run):
        grid.add_row(label, Text(text))
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column, title in enumerate(_HEADER):
        table.add_column(title, overflow="fold", no_wrap=column <= _STATE)
    for task, row in zip(snapshot.tasks, _task_rows(snapshot), strict=True):
        cells = (Text(cell, state_style(task.state) if column == _STATE else "") for column, cell in enumerate(row))
        table.add_row(*cells)
    return Group(Text(printable_line(snapshot.name), style="bold"), grid, Text(""), table)


def plain_array_explanation(snapshot: ArraySnapshot, width: int, run: str | None = None) -> str:
    """Return `explain` of an array as text: for each task its state, and why."""
    lines = [f"{printable_line(snapshot.name)}: {describe_counts(snapshot.counts)}"]
    for task in snapshot.tasks:
        varied = describe_parameters(task.parameters)
        name = _task_name(snapshot, task)
        line = f"{name}{f' ({varied})' if varied else ''}: {describe_state(task)}: {cause_of_task(task)}"
        first, *rest = wrap(printable_line(line), width - 2, "")
        lines += [first, *(f"  {each}" for each in rest)]
    return "\n".join([*lines, f"next: hpc-elastic {_next(snapshot, run)}"])


def cause_of_task(task: Snapshot) -> str:
    """Return why a task ended, or what it does, in one line."""
    if task.cause:
        return task.cause
    if task.attempt_history and task.attempt_history[-1].reason and len(task.attempt_history) > 1:
        return f"attempt {task.attempts} runs; the one before ended: {task.attempt_history[-1].reason}"
    return f"attempt {task.attempts} runs" if task.attempts else "it has not started"


def _task_rows(snapshot: ArraySnapshot) -> list[tuple[str, ...]]:
    rows = [
        (
            _task_name(snapshot, task),
            describe_state(task),
            describe_parameters(task.parameters),
            str(task.attempts),
            task.cause if task.cause and task.state is not RunState.SUCCEEDED else "",
        )
        for task in snapshot.tasks
    ]
    return [tuple(map(printable_line, row)) for row in rows]


def _task_name(snapshot: ArraySnapshot, task: Snapshot) -> str:
    """Return `1234_5`, and behind it the job's id where the task goes on as a job of its own."""
    if task.array_task is None:
        return task.job_id or ""
    name = array_task_id(snapshot.job_id, task.array_task)
    return name if task.job_id in (name, None) else f"{name} ({task.job_id})"


def _next(snapshot: ArraySnapshot, run: str | None) -> str:
    whole = quote(run or snapshot.job_id)
    failed = next((task for task in snapshot.tasks if task.state is RunState.FAILED), None)
    number = 0 if failed is None else failed.array_task or 0
    task = array_task_id(whole, number) if run in (None, snapshot.job_id) else f"{whole}/{number}"
    if failed is not None:
        return f"explain {task}, or logs"
    return f"logs {task}" if snapshot.is_over else f"cancel {whole}"
