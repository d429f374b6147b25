"""Gives a worker the signals of a fresh Python in the foreground, and a stack where a signal of its own ends it.

What a worker forks ignores the signal of a notice.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal

STANDARD_ERROR = 2


def take_back_ignored() -> None:
    """Stop ignoring SIGINT and SIGQUIT, which a shell lets the programs ignore that it runs in the background.

    Call it before anything else can have changed them: what the user's code ignores stays ignored. Other signals that
    are ignored are so on purpose, such as by a `trap` in a setup line.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def dump_stack_if_killed() -> None:
    """Have Python's stack written to standard error by SIGSEGV, SIGABRT, SIGBUS, SIGFPE and SIGILL.

    Nothing is changed where the user has asked for it already (PYTHONFAULTHANDLER, `-X faulthandler`). Never raises.
    """
    try:
        if not faulthandler.is_enabled():
            faulthandler.enable(STANDARD_ERROR)
    except Exception:  # without a standard error
        return


def ignore_in_children(number: int) -> None:
    """Have the processes that this one forks ignore a signal: a rank's handler is not for its data loaders.

    Args:
        number: the signal; 0: none.
    """
    if number:
        os.register_at_fork(after_in_child=lambda: _ignore(number))


def _ignore(number: int) -> None:
    with contextlib.suppress(ValueError, OSError):  # a fork of another interpreter than the main one
        signal.signal(number, signal.SIG_IGN)
