"""`hpc-elastic watch`: a run on the terminal, until it is over or somebody leaves."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from hpc_elastic.api.find import find_run
from hpc_elastic.api.schedulers import query_again
from hpc_elastic.cli.arguments import VerbParser, add_run
from hpc_elastic.cli.look import note
from hpc_elastic.cli.terminal import LEAVE_SCREEN, given_back
from hpc_elastic.failures.pace import NO_PACE, Pace
from hpc_elastic.observe.display import SHOW_CURSOR
from hpc_elastic.observe.samples import read_pace
from hpc_elastic.observe.snapshot import Snapshot, take_snapshot
from hpc_elastic.observe.watch import RunWatch, watch
from hpc_elastic.observe.watch_view import change_line, draw_view, read_events, what_changes
from hpc_elastic.rundir.layout import RunLayout

SAMPLES_S = 5.0  # the agents write one each 10 s
MOST_NODES = 256  # whose samples are read each time
_LEAVE = frozenset(b"qQ")


class _LeftError(Exception):
    """Somebody pressed q."""


def make_parser() -> VerbParser:
    """Make the parser of the verb's arguments."""
    parser = VerbParser(
        "watch",
        usage="[RUN]",
        description="Show a run on the terminal until it is over: state, attempt, step and its rate,\n"
        "the slowest rank, the latest events. q or Ctrl-C leaves; the run goes on.\n"
        "Where the output is no terminal, it prints a line for each change.",
        examples="  hpc-elastic watch\n  hpc-elastic watch digits | tee changes.txt\n",
    )
    add_run(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the verb and return the exit code."""
    arguments = make_parser().parse_args(argv)
    layout = find_run(arguments.run, say=note)
    first = take_snapshot(layout, None)
    scheduler = None if first.is_over or not first.scheduler else query_again(first.scheduler, layout.root)
    run_watch = RunWatch(layout, scheduler)
    paces = _Paces(layout)
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        _show(layout, run_watch, paces)
    else:
        _print(watch(run_watch), paces)
    return 0


class _Paces:
    """The pace of a run's ranks, read again when newer samples may be there."""

    def __init__(self, layout: RunLayout, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._layout = layout
        self._clock = clock
        self._due = float("-inf")
        self._attempt = 0
        self._pace = NO_PACE

    def of(self, snapshot: Snapshot) -> Pace:
        """Return the pace now; that of a run that is over says nothing any more."""
        if snapshot.is_over or not snapshot.attempts:
            return NO_PACE
        if self._clock() >= self._due or snapshot.attempts != self._attempt:
            self._pace = read_pace(self._layout, snapshot.nodes, snapshot.attempts, most=MOST_NODES)
            self._attempt, self._due = snapshot.attempts, self._clock() + SAMPLES_S
        return self._pace


def _print(snapshots: Iterator[Snapshot], paces: _Paces) -> None:
    before: object = None
    for snapshot in snapshots:
        pace = paces.of(snapshot)
        if (now := what_changes(snapshot, pace)) != before:
            print(f"{time.strftime('%H:%M:%S')} {change_line(snapshot, pace)}", flush=True)
            before = now


def _show(layout: RunLayout, run_watch: RunWatch, paces: _Paces) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console()
    last: list[Snapshot] = []
    with (
        given_back(sys.stdout, LEAVE_SCREEN + SHOW_CURSOR),
        contextlib.suppress(_LeftError),
        _keys() as wait,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        for snapshot in watch(run_watch, sleep=wait):
            last[:] = [snapshot]
            head = snapshot.attempt_history[-1].head if snapshot.attempt_history else ""
            events = read_events(layout, head, console.height) if head else []
            width, height = console.size
            hint = "q leaves, the run goes on"
            view = draw_view(snapshot, paces.of(snapshot), events, width=width, height=height, hint=hint)
            live.update(view, refresh=True)
    for snapshot in last:
        console.print(change_line(snapshot, paces.of(snapshot)), markup=False, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], None]]:
    """Give a pause that ends the watching when q is pressed; without a keyboard it only waits."""
    if not sys.stdin.isatty():
        yield time.sleep
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def wait(seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if select.select([descriptor], [], [], left)[0]:
                pressed = os.read(descriptor, 64)
                if not pressed:  # the terminal is gone
                    time.sleep(left)
                elif _LEAVE.intersection(pressed):
                    raise _LeftError

    try:
        tty.setcbreak(descriptor)
        yield wait
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
