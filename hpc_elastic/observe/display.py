"""The two displays of a followed run: plain lines, and a live line below them on a terminal."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from hpc_elastic.observe.narrate import count, describe_state, of_limit
from hpc_elastic.observe.snapshot import Snapshot
from hpc_elastic.observe.text import state_style
from hpc_elastic.printable import printable_line, printable_output

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from hpc_elastic.observe.follow import Display


class PlainDisplay:
    """Prints lines: rank 0's as they are, this package's marked and by default on another stream."""

    def __init__(self, progress: TextIO, output: TextIO) -> None:
        self._progress = progress
        self._output = output

    def say(self, line: str) -> None:
        """Show a line of this package about the run."""
        print(f"{_mark()} {printable_line(line)}", file=self._progress, flush=True)

    def output(self, line: str) -> None:
        """Show a line that rank 0 wrote."""
        print(line, file=self._output, flush=True)

    def show(self, snapshot: Snapshot) -> None:
        """Do nothing: changes of the state were printed as lines."""


class LiveDisplay:
    """Prints lines, and below them a live line: state, time, attempt, world, restarts."""

    def __init__(self, console: Console, live: Live) -> None:
        self._console = console
        self._live = live
        self._begun = time.monotonic()

    def say(self, line: str) -> None:
        """Show a line of this package about the run."""
        from rich.text import Text

        self._console.print(Text(f"{_mark()} {printable_line(line)}", style="cyan"), soft_wrap=True)

    def output(self, line: str) -> None:
        """Show a line that rank 0 wrote, with its colours."""
        from rich.text import Text

        self._console.print(Text.from_ansi(printable_output(line)), soft_wrap=True)

    def show(self, snapshot: Snapshot) -> None:
        """Update the live line."""
        from rich.spinner import Spinner

        self._live.update(Spinner("line", text=self._line(snapshot)))

    def _line(self, snapshot: Snapshot) -> Text:
        from rich.text import Text

        line = Text()
        line.append(printable_line(describe_state(snapshot)), style=state_style(snapshot.state))
        minutes, seconds = divmod(int(time.monotonic() - self._begun), 60)
        line.append(f"  {minutes // 60}:{minutes % 60:02d}:{seconds:02d}")
        if snapshot.attempts:
            workers = f"  {count(snapshot.workers, 'worker')}" if snapshot.workers else ""
            restarts = of_limit(snapshot.restarts, snapshot.max_restarts)
            line.append(f"  attempt {snapshot.attempts}{workers}  restarts {restarts}")
            if snapshot.node_losses:
                line.append(f"  node losses {of_limit(snapshot.node_losses, snapshot.max_node_losses)}")
        line.truncate(self._console.width - 2, overflow="ellipsis")  # beside the spinner
        return line


@contextmanager
def open_display(progress: TextIO, output: TextIO) -> Iterator[Display]:
    """Yield the display for these streams: live if both are a terminal that can show it, else plain."""
    if not (progress.isatty() and output.isatty() and os.environ.get("TERM", "dumb") != "dumb"):
        yield PlainDisplay(progress, output)
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(file=output)
    with Live(
        console=console, transient=True, refresh_per_second=4, redirect_stdout=False, redirect_stderr=False
    ) as live:
        yield LiveDisplay(console, live)


def _mark() -> str:
    """Return the mark of this package's lines, which tells them from the worker's."""
    return f"[hpc-elastic {time.strftime('%H:%M:%S')}]"
