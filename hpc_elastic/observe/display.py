"""The displays of a followed run: plain lines, and a live line below them while it has a terminal's foreground."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator, Sequence
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

SHOW_CURSOR = "\x1b[?25h"


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

    def show(self, snapshot: Snapshot, unfinished: Sequence[str] = ()) -> None:
        """Do nothing: changes of the state were printed as lines, and a line is printed when it has its end."""


class LiveDisplay:
    """Prints lines, and below them a live line: state, time, attempt, world, restarts; above that, progress bars."""

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

    def show(self, snapshot: Snapshot, unfinished: Sequence[str] = ()) -> None:
        """Update the live line, and above it what rank 0 has written of lines that have no end yet."""
        from rich.console import Group
        from rich.spinner import Spinner

        bars = [self._fit(line) for line in unfinished]
        self._live.update(Group(*bars, Spinner("line", text=self._line(snapshot))))

    def _fit(self, line: str) -> Text:
        from rich.text import Text

        text = Text.from_ansi(printable_output(line))
        text.truncate(self._console.width - 1, overflow="ellipsis")
        return text

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


class TerminalDisplay:
    """Shows a live line, and plain lines only for as long as the terminal is somebody else's: after `&`, or `bg`."""

    def __init__(self, plain: PlainDisplay, live: LiveDisplay, terminal: TextIO) -> None:
        self._plain = plain
        self._live = live
        self._terminal = terminal

    def say(self, line: str) -> None:
        """Show a line of this package about the run."""
        (self._plain if _is_in_background(self._terminal) else self._live).say(line)

    def output(self, line: str) -> None:
        """Show a line that rank 0 wrote, with its colours."""
        if _is_in_background(self._terminal):
            self._plain.output(printable_output(line))
        else:
            self._live.output(line)

    def show(self, snapshot: Snapshot, unfinished: Sequence[str] = ()) -> None:
        """Update the live line, also while it cannot be seen."""
        self._live.show(snapshot, unfinished)


class _Foreground(io.TextIOBase):
    """Passes on what the live line's console writes, while the terminal's foreground is this process's own."""

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal
        self._may_hide_cursor = False

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The terminal's: of another one rich draws other characters."""
        return self._terminal.encoding

    def write(self, text: str) -> int:
        is_in_background = _is_in_background(self._terminal)
        if not is_in_background:
            self._terminal.write(text)
        elif self._may_hide_cursor:  # the user's shell has a cursor, which a live line has not
            self._terminal.write(SHOW_CURSOR)
        self._may_hide_cursor = not is_in_background
        return len(text)

    def flush(self) -> None:
        self._terminal.flush()

    def isatty(self) -> bool:
        return self._terminal.isatty()


def _is_in_background(terminal: TextIO) -> bool:
    """Return whether another process group has the foreground of this terminal: the user's shell, or what it runs."""
    try:
        return os.tcgetpgrp(terminal.fileno()) != os.getpgrp()
    except OSError:  # not the terminal that controls this session, and so nobody's foreground
        return False


@contextmanager
def open_display(progress: TextIO, output: TextIO) -> Iterator[Display]:
    """Yield the display for these streams: live if both are a terminal that can show it, else plain.

    A live one is plain while this process is in the terminal's background.
    """
    if not (progress.isatty() and output.isatty() and os.environ.get("TERM", "dumb") != "dumb"):
        yield PlainDisplay(progress, output)
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(file=_Foreground(output))  # type: ignore[arg-type]  # rich asks for what this has
    with Live(
        console=console, transient=True, refresh_per_second=4, redirect_stdout=False, redirect_stderr=False
    ) as live:
        yield TerminalDisplay(PlainDisplay(progress, output), LiveDisplay(console, live), output)


def _mark() -> str:
    """Return the mark of this package's lines, which tells them from the worker's."""
    return f"[hpc-elastic {time.strftime('%H:%M:%S')}]"
