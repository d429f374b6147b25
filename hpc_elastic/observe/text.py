"""Text for people: colours of states, times of this machine, and lines that fit a width."""

from __future__ import annotations

import textwrap
from datetime import datetime

from hpc_elastic.observe.narrate import unix_time
from hpc_elastic.rundir.states import RunState

NARROW = 60  # columns below which a label has a line of its own
_STYLES = {
    RunState.SUCCEEDED: "bold green",
    RunState.FAILED: "bold red",
    RunState.CANCELLED: "bold yellow",
    RunState.UNKNOWN: "bold magenta",
    RunState.RUNNING: "bold cyan",
}


def state_style(state: RunState) -> str:
    """Return the colour of a state."""
    return _STYLES.get(state, "bold")


def readable_time(text: str | None) -> str:
    """Return a record's UTC time as this machine's local time, to the second; other text as it is."""
    moment = unix_time(text)
    return text or "" if moment is None else datetime.fromtimestamp(moment).strftime("%Y-%m-%d %H:%M:%S")


def wrap(text: str, width: int, indent: str) -> list[str]:
    """Return a text as lines of at most `width` columns, broken between words; a longer word stays whole."""
    lines = [
        line
        for part in text.splitlines()
        for line in textwrap.wrap(
            part,
            max(width, 20),
            initial_indent=indent,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    ]
    return lines or [indent]
