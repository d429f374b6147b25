"""Writes what people read of an agent: lines in its log and in the script's output, events and metrics."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Sequence
from typing import TextIO

from hpc_elastic.codec import to_json
from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.membership.actions import Level, Note
from hpc_elastic.plan.launch_plan import LaunchPlan
from hpc_elastic.printable import printable_line
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import Event, MetricData
from hpc_elastic.rundir.store import append_line, append_lines
from hpc_elastic.scheduler.allocation import Allocation
from hpc_elastic.whole_lines import write_line

LEVELS: tuple[Level, ...] = ("error", "warning", "info", "debug")


class EventLog:
    """What one agent tells people.

    Args:
        layout: the file names.
        plan: the launch plan.
        place: this node's place.
    """

    def __init__(self, layout: RunLayout, plan: LaunchPlan, place: Allocation) -> None:
        self._layout = layout
        self._plan = plan
        self._place = place
        self._loudest = next((number for number, level in enumerate(LEVELS) if level == plan.log_level), len(LEVELS))
        self.allocation = 0
        self.is_head = False
        self.log: TextIO | None = None  # receives the lines for people; None: standard output

    def say(self, text: str, level: Level = "info") -> None:
        """Print a line, if `log_level` asks for it, to the agent's log and, on the head, to the script's output."""
        self._print(text, level, to_output=self.is_head)

    def _print(self, text: str, level: Level, *, to_output: bool) -> None:
        if LEVELS.index(level) > self._loudest:
            return
        mark = "debug: " if level == "debug" else ""
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} hpc-elastic {self._place.node}: {mark}{printable_line(text)}"
        log = sys.stdout if self.log is None else self.log
        with contextlib.suppress(OSError):
            if log is not None:
                write_line(log, line)
        if to_output:
            path = self._layout.script_output(self._place.job_id)
            with contextlib.suppress(OSError), open(path, "a", encoding="utf-8", opener=_private) as file:
                file.write(f"{line}\n")

    def note(self, note: Note, time_ns: int) -> None:
        """Append an event to this node's file; `time_ns` is when it happened, not when it is written."""
        self.append_events([self._event(note, time_ns)])

    def answer(self, note: Note, time_ns: int) -> None:
        """Append an event that a person waits for.

        Raises:
            RunDirectoryError: it cannot be written.
        """
        append_line(self._layout.events(self._place.node), to_json(self._event(note, time_ns)))

    def _event(self, note: Note, time_ns: int) -> Event:
        return Event(
            time_ns=time_ns,
            run=self._plan.run,
            node=self._place.node,
            allocation=self.allocation,
            attempt=note.attempt,
            name=note.name,
            message=note.message,
            metadata=dict(note.metadata),
        )

    def append_events(self, events: Sequence[Event]) -> None:
        """Append events to this node's file; they are lost if the run directory cannot be written."""
        with contextlib.suppress(RunDirectoryError):
            append_lines(self._layout.events(self._place.node), map(to_json, events))

    def append_metrics(self, metrics: Sequence[MetricData]) -> None:
        """Append metrics to this node's file; they are lost if the run directory cannot be written."""
        with contextlib.suppress(RunDirectoryError):
            append_lines(self._layout.metrics(self._place.node), map(to_json, metrics))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
