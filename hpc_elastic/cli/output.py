"""Standard output that is full, closed or gone, and what must be said all the same."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_OUTPUT_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})


def replace_closed_streams() -> None:
    """Takes the places of standard streams that the shell has closed, so that no file of ours gets them.

    A closed standard output refuses what is written, as a full one does; what goes to a closed standard
    error is lost. Python has None there, and `print` to None is silent or goes elsewhere.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_WRONLY if number == 2 else os.O_RDONLY)  # the lowest that is free: this one
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)


def is_output_error(error: BaseException) -> bool:
    """Whether writing to standard output failed: an error of a file has the file's name."""
    return isinstance(error, OSError) and error.filename is None and error.errno in _OUTPUT_ERRORS


def drop_output() -> None:
    """Forgets what could not be written; Python would try again at its exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


@contextmanager
def said_at_least(line: str) -> Iterator[None]:
    """Says a line on standard error if the block cannot write its output, or is interrupted meanwhile."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(line) from None
    except OSError as error:
        if isinstance(error, BrokenPipeError) or is_output_error(error):
            print(line, file=sys.stderr, flush=True)
        raise
