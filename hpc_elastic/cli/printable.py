"""Makes text of programs, files and paths safe to print on a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return the text without the characters that control a terminal."""
    return "".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in text)
