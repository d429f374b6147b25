"""Text of programs, files and paths as a terminal may have it."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text without what would steer the terminal."""
    return "".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in text)
