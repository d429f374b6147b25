"""Makes text of workers, programs, files and paths safe for people to read: nothing in it controls a terminal.

Whatever a worker writes into an exception's message reaches records, and from there terminals: an escape sequence could
clear the screen, a carriage return hide the line before it, an override of the writing direction turn a name round.
Data for programs (records, `--json`) keep such characters, as JSON has them.
"""

from __future__ import annotations

import re

_SPACES = frozenset("\u00a0\u1680\u202f\u205f\u3000\u200c\u200d") | {chr(code) for code in range(0x2000, 0x200B)}
_COLOUR = re.compile("(\x1b\\[[0-9;:]{0,64}m)")  # SGR of ECMA-48, with the colons of ISO 8613-6


def printable(text: str) -> str:
    """Return the text with all that controls a terminal as escapes, as Python writes them; its lines stay lines."""
    if text.isprintable():
        return text
    return "".join(char if char == "\n" else _shown(char) for char in text)


def printable_line(text: str) -> str:
    """Return the text as `printable` does, with its line breaks as escapes too: what is one line stays one."""
    return text if text.isprintable() else "".join(map(_shown, text))


def printable_output(line: str) -> str:
    """Return a line that a worker wrote for a terminal: what a progress bar has overwritten is gone, colours stay.

    A tab becomes spaces. The cursor stays in its line, and colours end with it.
    """
    last = line.rstrip("\r").rpartition("\r")[2].expandtabs()
    if last.isprintable():
        return last
    parts = _COLOUR.split(last)
    shown = "".join(part if number % 2 else printable_line(part) for number, part in enumerate(parts))
    return f"{shown}\x1b[0m" if len(parts) > 1 else shown


def without_colours(text: str) -> str:
    """Return a text without the sequences that set colours."""
    return _COLOUR.sub("", text)


def _shown(char: str) -> str:
    return char if char.isprintable() or char in _SPACES else repr(char)[1:-1]
