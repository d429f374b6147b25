"""Gives a terminal that is drawn on back before a TERM ends this process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager


class _TerminatedError(BaseException):
    """A TERM has come; no `except Exception` on the way out may hold it up."""


@contextmanager
def given_back() -> Iterator[None]:
    """Leave the block at a TERM, so that what it has set on the terminal is set back, and die of the TERM then.

    Where a TERM has a handler, or is ignored, that stays so.
    """
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    except _TerminatedError:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _leave(number: int, _: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # a second one would cut short what gives the terminal back
    raise _TerminatedError
