"""Lays out a run that is watched: as a view for a terminal, and as a line for each change elsewhere."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from hpc_elastic.failures.pace import Pace
from hpc_elastic.observe.narrate import (
    count,
    describe_left_out,
    describe_nodes,
    describe_set_aside,
    describe_state,
    of_limit,
    waiting_rows,
)
from hpc_elastic.observe.slow_ranks import describe_pace, describe_slow
from hpc_elastic.observe.snapshot import Snapshot
from hpc_elastic.observe.text import NARROW, state_style
from hpc_elastic.rundir.layout import RunLayout

if TYPE_CHECKING:
    from rich.console import RenderableType

_END = 64 * 1024
_TORCH = "torchelastic."


def read_events(layout: RunLayout, node: str, most: int) -> list[tuple[int, str]]:
    """Return the time in nanoseconds and the text of a node's last events, without those that torch's agent has too."""
    found: list[tuple[int, str]] = []
    with contextlib.suppress(OSError), open(layout.events(node), "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _END))
        for line in file.read().splitlines()[1 if size > _END else 0 :]:
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if _is_ours(event):
                    found.append((event["time_ns"], plain(str(event.get("message", "")))))
    return found[-most:] if most > 0 else []


def watch_rows(snapshot: Snapshot, pace: Pace) -> list[tuple[str, str]]:
    """Return the label and the text of each line of the view; a text is not empty."""
    history = snapshot.attempt_history
    restarted = history[-1].reason if len(history) > 1 else ""
    workers = f"{count(snapshot.workers, 'worker')} on " if snapshot.workers else ""
    attempts = f"{snapshot.attempts}, restarts {of_limit(snapshot.restarts, snapshot.max_restarts)}"
    rows = [
        ("state", describe_state(snapshot)),
        ("attempt", attempts if snapshot.attempts else "none yet"),
        ("world", f"{workers}{describe_nodes(snapshot.nodes)}" if snapshot.nodes else ""),
        *waiting_rows(snapshot.spares, snapshot.awaited_nodes),
        ("set aside", describe_set_aside(snapshot.set_aside)),
        ("left out", describe_left_out(snapshot.left_out)),
        ("lost", describe_nodes(snapshot.lost_nodes) if snapshot.lost_nodes else ""),
        ("step", describe_pace(pace)),
        ("slowest", describe_slow(pace)),
        ("restarted", restarted),
        ("notice", snapshot.notice or ""),
        ("cause", snapshot.cause or ""),
        ("note", snapshot.note or ""),
    ]
    return [(label, plain(text)) for label, text in rows if text]


def change_line(snapshot: Snapshot, pace: Pace) -> str:
    """Return the line of a change, for output that is no terminal."""
    parts = [describe_state(snapshot)]
    if snapshot.attempts:
        parts.append(f"attempt {snapshot.attempts}")
    if snapshot.workers:
        parts.append(f"{count(snapshot.workers, 'worker')} on {count(len(snapshot.nodes), 'node')}")
    if pace.step is not None:
        parts.append(f"step {describe_pace(pace)}")
    if pace.slow:
        parts.append(f"slowest {describe_slow(pace)}")
    if snapshot.notice:
        parts.append(f"notice at {snapshot.notice}")
    if snapshot.cause:
        parts.append(snapshot.cause)
    elif len(snapshot.attempt_history) > 1:
        parts.append(f"after: {snapshot.attempt_history[-1].reason}")
    return plain("; ".join(parts)).replace("\n", " ")


def what_changes(snapshot: Snapshot, pace: Pace) -> object:
    """Return what a new line is printed for when it differs: not the step, which always does."""
    slowest = [each.rank for each in pace.slow[:1]]
    return snapshot.state, snapshot.attempts, snapshot.workers, snapshot.notice, snapshot.cause, slowest


def draw_view(
    snapshot: Snapshot, pace: Pace, events: Sequence[tuple[int, str]], *, width: int, height: int, hint: str
) -> RenderableType:
    """Return the view, in so many columns and lines; the latest events fill what is left of it.

    Args:
        snapshot: the run now.
        pace: where its ranks are.
        events: the time in nanoseconds and the text of each event, the oldest first.
        width: the columns of the terminal.
        height: its lines.
        hint: the last line: how to leave.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    parts: list[RenderableType] = [Text(plain(snapshot.name), style="bold")]
    used = 3
    if width >= NARROW:
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        parts.append(grid)
    for label, text in watch_rows(snapshot, pace):
        styled = Text(text, style=_style(label, snapshot), overflow="fold")
        if width >= NARROW:
            grid.add_row(label, styled)
            used += 1 + len(text) // max(1, width - 12)
        else:
            parts += [Text(label, style="dim"), Text("  ").append_text(styled)]
            used += 2 + len(text) // max(1, width - 2)
    room = max(0, height - used - 1)
    lines = [
        Text(f"{_clock(at)}  {text.partition(chr(10))[0]}", style="dim", no_wrap=True, overflow="ellipsis")
        for at, text in events[len(events) - min(room, len(events)) :]
    ]
    return Group(*parts, *([Text("")] if lines else []), *lines, Text(hint, style="dim italic"))


def plain(text: str) -> str:
    """Return the text without the characters that control a terminal."""
    return "".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in text)


def _style(label: str, snapshot: Snapshot) -> str:
    if label == "state":
        return state_style(snapshot.state)
    return "yellow" if label in ("slowest", "lost", "notice") else ""


def _clock(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns / 1e9).astimezone().strftime("%H:%M:%S")


def _is_ours(event: Mapping[str, Any] | Any) -> bool:
    return (
        isinstance(event, dict)
        and isinstance(event.get("time_ns"), int)
        and not str(event.get("name", _TORCH)).startswith(_TORCH)
    )
