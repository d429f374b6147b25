"""`hpc-elastic logs --follow`: goes on until the run is over, from attempt to attempt."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator

from hpc_elastic.api.schedulers import query_again
from hpc_elastic.cli.log_files import choose_tails, copy_tail
from hpc_elastic.cli.logs_merge import Choice, MergedFollower
from hpc_elastic.observe.facts import FactReader, attempt_of_rank
from hpc_elastic.observe.narrate import narrate_state
from hpc_elastic.observe.queue_wait import QueueWait
from hpc_elastic.observe.snapshot import Snapshot, make_snapshot
from hpc_elastic.observe.tail import RankTail
from hpc_elastic.observe.waiting import WAITING
from hpc_elastic.observe.watch import RunWatch, watch
from hpc_elastic.printable import printable_line
from hpc_elastic.rundir.layout import RunLayout


def follow_logs(layout: RunLayout, arguments: Namespace, choice: Choice | None) -> int:
    """Copy the output as it is written, until the run, or the attempt that was asked for, is over.

    Args:
        layout: the run's.
        arguments: the command line.
        choice: what is shown line by line; None for the whole output of one rank, an agent or the script.
    """
    reader = FactReader(layout)
    first = make_snapshot(reader.read(), None)
    scheduler = None if first.is_over else query_again(first.scheduler, layout.root)
    snapshots = _say_waiting(watch(RunWatch(layout, scheduler, reader=reader)))
    if choice is not None:
        merged = MergedFollower(layout, choice)
        for snapshot in snapshots:
            numbers = [attempt.number for attempt in snapshot.attempt_history]
            if merged.advance(numbers, is_over=snapshot.is_over):
                break
        merged.finish()
        return 0
    if arguments.node is not None or arguments.script:
        tail = choose_tails(layout, arguments)[0]
        for _ in snapshots:
            copy_tail(tail, 1)
        return 0
    follower = _RankFollower(layout, arguments.rank or 0, arguments.attempt)
    for snapshot in snapshots:
        if follower.advance(snapshot):
            break
    return 0


def _say_waiting(snapshots: Iterator[Snapshot]) -> Iterator[Snapshot]:
    """Yield the snapshots; say on standard error what a person should know of a job that waits, or of the end."""
    wait = QueueWait()
    previous: Snapshot | None = None
    for snapshot in snapshots:
        lines = narrate_state(previous, snapshot) if snapshot.state.value in WAITING else []
        if snapshot.is_over and snapshot.note:
            lines = [snapshot.note]
        for line in filter(None, (*lines, wait.advance(snapshot))):
            print(f"--- {printable_line(line)} ---", file=sys.stderr, flush=True)
        previous = snapshot
        yield snapshot


class _RankFollower:
    def __init__(self, layout: RunLayout, rank: int, only: int | None) -> None:
        self._layout = layout
        self._rank = rank
        self._only = only
        self._tail: RankTail | None = None

    def advance(self, snapshot: Snapshot) -> bool:
        """Copy the new output; return whether the attempt that was asked for is over."""
        numbers = [attempt.number for attempt in snapshot.attempt_history]
        if self._tail is None and numbers:
            self._open(self._only or attempt_of_rank(self._layout, numbers[-1], self._rank), is_first=True)
        self._copy()
        later = [number for number in numbers if self._tail and number > self._tail.attempt]
        if self._only is not None:
            return bool(later)
        for number in later:
            if attempt_of_rank(self._layout, number, self._rank) != number:
                continue  # the rank's role was not restarted in this attempt
            self._open(number, is_first=False)
            self._copy()
        return False

    def _open(self, number: int, *, is_first: bool) -> None:
        if not is_first:
            print(f"--- attempt {number} ---", file=sys.stderr, flush=True)
        self._tail = RankTail(self._layout, number, self._rank)

    def _copy(self) -> None:
        if self._tail is not None:
            copy_tail(self._tail.stdout, 1)
            copy_tail(self._tail.stderr, 2)
