"""Writes a line to a stream that other processes write to as well, so that no other line comes into it."""

from __future__ import annotations

import contextlib
import sys
from typing import TextIO


def write_line(stream: TextIO, line: str) -> None:
    """Write a line and its newline at once; where a stream has no buffer, print writes the newline by itself.

    Raises:
        OSError: it cannot be written.
    """
    stream.write(f"{line}\n")
    stream.flush()


def tell(line: str) -> None:
    """Write a line to standard error, if there is one that can be written: its disk may be full, or its reader gone."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            write_line(sys.stderr, line)
