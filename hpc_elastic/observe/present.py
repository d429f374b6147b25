"""Lays snapshots out for people: plain text, and rich where a terminal draws it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpc_elastic.failures.pace import NO_PACE, Pace
from hpc_elastic.observe.array import ArraySnapshot
from hpc_elastic.observe.clock_steps import describe_steps, known_span
from hpc_elastic.observe.narrate import (
    count,
    describe_counts,
    describe_duration,
    describe_left_out,
    describe_nodes,
    describe_parameters,
    describe_set_aside,
    describe_state,
    describe_useful_time,
    of_limit,
    unix_time,
    waiting_rows,
    where_to_look,
)
from hpc_elastic.observe.slow_ranks import describe_pace, describe_slow
from hpc_elastic.observe.snapshot import Snapshot
from hpc_elastic.observe.text import NARROW, readable_time, state_style, wrap
from hpc_elastic.printable import printable, printable_line
from hpc_elastic.rundir.states import RunState
from hpc_elastic.useful_time.reading import UsefulTime

if TYPE_CHECKING:
    from rich.console import RenderableType

_LABEL_WIDTH = 15
_FOR_COPYING = ("run directory", "next", "")  # paths and commands, with spaces in them perhaps
_WIDE = 100
LIST_HEADER = ("NAME", "STATE", "JOB", "SUBMITTED", "ATTEMPTS", "RUN DIRECTORY")


def status_rows(
    snapshot: Snapshot,
    pace: Pace = NO_PACE,
    useful_time: UsefulTime | None = None,
    now: float | None = None,
    *,
    run: str | None = None,
) -> list[tuple[str, str]]:
    """Return the label and the text of each line of `status`.

    Args:
        snapshot: the run.
        pace: how fast it is.
        useful_time: what its time was spent on.
        now: in Unix seconds; by default by this clock.
        run: names the run in the commands; by default its job id.
    """
    workers = f"{count(snapshot.workers, 'worker')} on " if snapshot.workers else ""
    code = f", exit code {snapshot.exit_code}" if snapshot.exit_code is not None else ""
    rows = [
        ("state", f"{describe_state(snapshot)}{code}"),
        ("cause", snapshot.cause or ""),
        ("root cause", _root_cause(snapshot)),
        ("last restart", _last_restart(snapshot)),
        ("notice", snapshot.notice or ""),
        ("note", snapshot.note or ""),
        ("attempts", str(snapshot.attempts or ("none" if snapshot.is_over else "none yet"))),
        ("between", _between(snapshot)),
        ("world", f"{workers}{describe_nodes(snapshot.nodes)}" if snapshot.nodes else ""),
        ("step", describe_pace(pace)),
        ("slowest", describe_slow(pace)),
        *(() if snapshot.is_over else waiting_rows(snapshot.spares, snapshot.awaited_nodes)),
        ("set aside", describe_set_aside(snapshot.set_aside)),
        ("left out", describe_left_out(snapshot.left_out)),
        ("changed", snapshot.changed_line),
        ("lost", describe_nodes(snapshot.lost_nodes) if snapshot.lost_nodes else ""),
        ("restarts", of_limit(snapshot.restarts, snapshot.max_restarts)),
        ("node losses", of_limit(snapshot.node_losses, snapshot.max_node_losses) if snapshot.node_losses else ""),
        ("task", _task(snapshot)),
        ("job", " ".join(filter(None, (snapshot.job_id, f"on {snapshot.site}" if snapshot.site else "")))),
        ("submitted", readable_time(snapshot.submitted)),
        ("ended", readable_time(snapshot.ended)),
        ("elapsed", _elapsed(snapshot, time.time() if now is None else now)),
        ("clock", describe_steps(snapshot.clock_steps)),
        ("useful time", "" if useful_time is None else describe_useful_time(useful_time)),
        ("run directory", snapshot.run_dir),
    ]
    rows += [("next" if number == 0 else "", line) for number, line in enumerate(where_to_look(snapshot, run))]
    return [(label, printable(text)) for label, text in rows if text]


def plain_status(
    snapshot: Snapshot,
    width: int,
    pace: Pace = NO_PACE,
    useful_time: UsefulTime | None = None,
    *,
    run: str | None = None,
) -> str:
    """Return `status` as text, wrapped between words to `width` columns; paths and commands are never broken."""
    lines = [printable_line(snapshot.name)]
    for label, text in status_rows(snapshot, pace, useful_time, run=run):
        is_for_copying = label in _FOR_COPYING
        if width < NARROW:
            lines += [label] * bool(label) + ([f"  {text}"] if is_for_copying else wrap(text, width, "  "))
        else:
            first, *rest = [text] if is_for_copying else wrap(text, width - _LABEL_WIDTH, "")
            lines.append(f"{label:<{_LABEL_WIDTH}}{first}")
            lines += [" " * _LABEL_WIDTH + line for line in rest]
    return "\n".join(lines)


def rich_status(
    snapshot: Snapshot, pace: Pace = NO_PACE, useful_time: UsefulTime | None = None, *, run: str | None = None
) -> RenderableType:
    """Return `status` for a terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in status_rows(snapshot, pace, useful_time, run=run):
        grid.add_row(label, Text(text, style=state_style(snapshot.state) if label == "state" else ""))
    return Group(Text(printable_line(snapshot.name), style="bold"), grid)


def list_rows(listed: Sequence[Snapshot | ArraySnapshot]) -> list[tuple[str, ...]]:
    """Return the cells of `list`, under `LIST_HEADER`; an array has one row."""
    rows = [
        (
            _list_name(item),
            item.state.value if isinstance(item, Snapshot) else describe_counts(item.counts),
            item.job_id or "-",
            readable_time(item.submitted),
            str(item.attempts if isinstance(item, Snapshot) else sum(task.attempts for task in item.tasks)),
            item.run_dir,
        )
        for item in listed
    ]
    return [tuple(map(printable_line, row)) for row in rows]


def plain_list(listed: Sequence[Snapshot | ArraySnapshot]) -> str:
    """Return `list` as text in columns; the run directory is the last one, because it can be long."""
    return "\n".join(columns_of([LIST_HEADER, *list_rows(listed)]))


def columns_of(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def list_columns(width: int) -> tuple[int, ...]:
    """Return the columns of `LIST_HEADER` for which a terminal of this width has room."""
    if width >= _WIDE:
        return tuple(range(len(LIST_HEADER)))
    return (0, 1, 2, 3) if width >= NARROW else (0, 1, 2)


def rich_list(listed: Sequence[Snapshot | ArraySnapshot], width: int) -> RenderableType:
    """Return `list` for a terminal; a narrow one gets fewer columns, not broken ones."""
    from rich.table import Table
    from rich.text import Text

    columns = list_columns(width)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(LIST_HEADER[column], overflow="fold", no_wrap=column in (1, 3))
    for item, row in zip(listed, list_rows(listed), strict=True):
        state = item.state if isinstance(item, Snapshot) else _telling_state(item)
        table.add_row(*(Text(row[column], state_style(state) if column == 1 else "") for column in columns))
    return table


def _root_cause(snapshot: Snapshot) -> str:
    """Return the line of the result's root cause, unless the cause has it already."""
    line = str((snapshot.root_cause or {}).get("line", ""))
    return "" if line in (snapshot.cause or "") else line


def _last_restart(snapshot: Snapshot) -> str:
    """Return why the attempt before the latest one ended, of a run that goes on."""
    if snapshot.is_over or len(snapshot.attempt_history) < 2:
        return ""
    latest = snapshot.attempt_history[-1]
    why = (latest.root_cause or {}).get("line") or latest.reason
    return f"{readable_time(latest.opened)}, after: {why}" if why else ""


def _between(snapshot: Snapshot) -> str:
    """Return that no attempt runs now, and why the last one ended."""
    if snapshot.between is None:
        return ""
    why = f": {snapshot.between}" if snapshot.between else ""
    return f"attempt {snapshot.attempts} has ended, and the next one is not open yet{why}"


def _elapsed(snapshot: Snapshot, now: float) -> str:
    begun = unix_time(snapshot.started)
    ended = unix_time(snapshot.ended) if snapshot.is_over else now
    elapsed = known_span(begun, ended, snapshot.clock_steps)
    return "" if elapsed is None else describe_duration(elapsed)


def _telling_state(array: ArraySnapshot) -> RunState:
    """Return the state whose colour an array has: a failure shows while other tasks still run."""
    order = (RunState.FAILED, RunState.UNKNOWN, RunState.RUNNING, RunState.REQUEUED, RunState.PENDING)
    return next((state for state in (*order, RunState.CANCELLED) if state in array.counts), RunState.SUCCEEDED)


def _list_name(item: Snapshot | ArraySnapshot) -> str:
    if isinstance(item, Snapshot) and item.array_task is not None:
        return f"{item.name}_{item.array_task} {describe_parameters(item.parameters)}".rstrip()
    return item.name


def _task(snapshot: Snapshot) -> str:
    if snapshot.array_task is None:
        return ""
    varied = f": {describe_parameters(snapshot.parameters)}" if snapshot.parameters else ""
    return f"{snapshot.array_task} of {os.path.basename(snapshot.array or '')}{varied}"
