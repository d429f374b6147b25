"""Follows a run to its end: its states, its attempts, rank 0's output, and how it ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from hpc_elastic.observe.facts import AttemptFacts, attempt_of_rank
from hpc_elastic.observe.narrate import narrate_attempt, narrate_end, narrate_state
from hpc_elastic.observe.queue_wait import QueueWait
from hpc_elastic.observe.snapshot import Snapshot
from hpc_elastic.observe.tail import RankTail
from hpc_elastic.rundir.layout import RunLayout


class Display(Protocol):
    """The place where a followed run is shown."""

    def say(self, line: str) -> None:
        """Show a line of this package about the run."""

    def output(self, line: str) -> None:
        """Show a line that rank 0 wrote."""

    def show(self, snapshot: Snapshot, unfinished: Sequence[str] = ()) -> None:
        """Show the state of the run now, and what rank 0 has written of lines that have no end yet."""


def follow(
    layout: RunLayout, snapshots: Iterable[Snapshot], display: Display, *, rank: int = 0, run: str | None = None
) -> Snapshot:
    """Show a run until the snapshots end.

    Args:
        layout: the run's.
        snapshots: at least one; the last one shows the run's end.
        display: the display that shows the run.
        rank: the global rank whose output is shown.
        run: names the run in the commands that are shown; None for its job id.

    Returns:
        The last snapshot.
    """
    follower = _Follower(layout, display, rank, run)
    last: Snapshot | None = None
    for last in snapshots:
        follower.advance(last)
    if last is None:
        raise ValueError("there is no snapshot to follow")
    follower.finish(last)
    return last


class _Follower:
    def __init__(self, layout: RunLayout, display: Display, rank: int, run: str | None) -> None:
        self._layout = layout
        self._display = display
        self._rank = rank
        self._run = run
        self._snapshot: Snapshot | None = None
        self._attempt: AttemptFacts | None = None
        self._tail: RankTail | None = None
        self._wait = QueueWait()

    def advance(self, snapshot: Snapshot) -> None:
        for line in narrate_state(self._snapshot, snapshot):
            self._display.say(line)
        if line := self._wait.advance(snapshot):
            self._display.say(line)
        for attempt in snapshot.attempt_history:
            if self._attempt is None or attempt.number > self._attempt.number:
                if attempt.workers is None and not snapshot.is_over:
                    break  # the roster follows its claim at once; with it the line says more
                self._open(attempt, snapshot)
        self._drain(is_last=False)
        self._display.show(snapshot, self._tail.unfinished() if self._tail is not None else ())
        self._snapshot = snapshot

    def finish(self, snapshot: Snapshot) -> None:
        self._drain(is_last=True)
        for line in narrate_end(snapshot, self._run):
            self._display.say(line)

    def _open(self, attempt: AttemptFacts, snapshot: Snapshot) -> None:
        self._drain(is_last=not attempt.roles)
        self._display.say(narrate_attempt(attempt, self._attempt, snapshot))
        self._attempt = attempt
        if attempt_of_rank(self._layout, attempt.number, self._rank) == attempt.number:
            self._tail = RankTail(self._layout, attempt.number, self._rank)

    def _drain(self, *, is_last: bool) -> None:
        if self._tail is not None:
            for line in self._tail.lines(is_last=is_last):
                self._display.output(line)
