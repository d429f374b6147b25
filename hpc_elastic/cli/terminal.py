"""Gives a terminal that is drawn on back before a TERM ends this process."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from hpc_elastic.observe.display import SHOW_CURSOR

LEAVE_SCREEN = "\x1b[?1049l"  # the other one, which full-screen programs draw on; xterm's ctlseqs


class _TerminatedError(BaseException):
    """A TERM has come; no `except Exception` on the way out may hold it up."""


@contextmanager
def given_back(terminal: TextIO, sequences: str = SHOW_CURSOR) -> Iterator[None]:
    """Leave the block at a TERM, so that what it has set on the terminal is set back, and die of the TERM then.

    Where a TERM has a handler, or is ignored, that stays so.

    Args:
        terminal: what is drawn on; nothing is written to it if it is none.
        sequences: written at a TERM, whatever the block has done: it may have come as the block was just drawing.
    """
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    except _TerminatedError:
        with contextlib.suppress(OSError, ValueError):  # it is closed
            if terminal.isatty():
                os.write(terminal.fileno(), sequences.encode())
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _leave(number: int, _: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # a second one would cut short what gives the terminal back
    raise _TerminatedError
