"""An array of runs under observation: its folder, and what the scheduler says of its tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from hpc_elastic.api.schedulers import query_again
from hpc_elastic.errors import FileSystemError
from hpc_elastic.observe.array import ArrayFacts, ArraySnapshot, make_array_snapshot, read_array
from hpc_elastic.observe.diagnosis import SETTLE_S
from hpc_elastic.observe.facts import find_gone
from hpc_elastic.observe.many import ManyWatch
from hpc_elastic.observe.watch import LOOK_S, PATIENCE_S
from hpc_elastic.rundir.layout import ArrayLayout
from hpc_elastic.scheduler.protocol import JobQuery


class ArrayWatch:
    """Takes snapshots of an array repeatedly.

    Args:
        layout: the array's.
        warn: takes a line about what could not be done.
        settle_s: how long a task's job must be over before its missing result is made.
        make_query: makes the object that is asked about the tasks' jobs; `query_once` for a single look.

    Raises:
        RunDirectoryError: there is no array.
    """

    def __init__(
        self,
        layout: ArrayLayout,
        *,
        warn: Callable[[str], None],
        settle_s: float = SETTLE_S,
        make_query: Callable[[str, str], JobQuery] = query_again,
    ) -> None:
        self.facts: ArrayFacts = read_array(layout)
        self._tasks = ManyWatch(self.facts.runs, make_query, warn=warn, settle_s=settle_s)

    @property
    def trouble(self) -> str | None:
        """The scheduler's error, if it did not answer the last question; else None."""
        return self._tasks.trouble

    def look(self) -> ArraySnapshot:
        """Return a snapshot of the array; write results that no agent will write."""
        return make_array_snapshot(self.facts, self._tasks.look())

    def note_stop(self) -> None:
        """Take each task that is gone from now on for one that a person has stopped."""
        self._tasks.note_stop()

    def until_over(
        self, *, within_s: float | None = None, patience_s: float = PATIENCE_S, pause_s: float = LOOK_S
    ) -> Iterator[ArraySnapshot]:
        """Yield snapshots; the last one is taken when the array is over or the time is up.

        The pause is at least as long as a snapshot takes, so that a large array is read less often.

        Raises:
            FileSystemError: the array's folder was moved or removed, and is not back; or that of a task, and the
                others are over.
        """
        deadline = None if within_s is None else time.monotonic() + within_s
        gone_since: float | None = None
        while True:
            started = time.monotonic()
            snapshot = self.look()
            yield snapshot
            now = time.monotonic()
            if snapshot.is_over or (deadline is not None and now >= deadline):
                return
            if (gone := self._find_gone(snapshot)) is None:
                gone_since = None
            elif now - (gone_since := gone_since or started) >= patience_s:
                raise gone
            time.sleep(max(pause_s, 2 * (now - started)))

    def lacks_only_gone(self, snapshot: ArraySnapshot) -> bool:
        """Return whether all tasks are over but those whose folders were moved or removed."""
        return all(task.is_over for task in snapshot.tasks) and len(snapshot.tasks) + len(self._gone()) == snapshot.size

    def _find_gone(self, snapshot: ArraySnapshot) -> FileSystemError | None:
        """Return the error about a folder that is gone and without which the array never ends."""
        if (gone := find_gone(self.facts.layout.root)) is not None or not all(task.is_over for task in snapshot.tasks):
            return gone
        return next(iter(self._gone()), None)

    def _gone(self) -> list[FileSystemError]:
        return [gone for run, _ in self.facts.runs if (gone := find_gone(run.root)) is not None]
