"""Lets Python end a process as usual after an exception, without this package's frames in the traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import TracebackType

from hpc_elastic.worker.exception_texts import settle_exit

PACKAGE_DIRECTORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def without_own_frames(frames: TracebackType | None) -> TracebackType | None:
    """Return the traceback without the frames of this package: those that began it, and those of `worker.closing`."""
    prefix = PACKAGE_DIRECTORY + os.sep
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(prefix):
        frames = frames.tb_next
    last = frames
    while last is not None:
        while last.tb_next is not None and last.tb_next.tb_frame.f_code.co_filename.startswith(prefix):
            last.tb_next = last.tb_next.tb_next
        last = last.tb_next
    return frames


def show_as_users_own(
    error: BaseException,
    *,
    set_exit_code: Callable[[BaseException], None],
    afterwards: Callable[[], None],
    when_shown: Callable[[], None] | None = None,
) -> None:
    """Prepare the interpreter for the moment when `error` reaches its top level, where it ends the process.

    Only there does Python call the then `sys.excepthook`, note a KeyboardInterrupt to die of SIGINT, and
    join threads. Until then the exception gets our callers' frames as well, so the hook is given the
    frames of this moment.

    Args:
        error: what the user's code raised, its traceback without our frames.
        set_exit_code: is called with the SystemExit that the hook raises, if it does.
        afterwards: is called when the hook has ended.
        when_shown: is called then too, unless the hook exits.
    """
    hook = getattr(sys, "excepthook", None)
    if hook is None:  # Python reports that itself
        return
    frames = error.__traceback__

    def show(kind: type[BaseException], value: BaseException, _: TracebackType | None) -> None:
        sys.excepthook = hook
        sys.last_traceback = value.__traceback__ = frames
        try:
            hook(kind, value, frames)
        except SystemExit as leaving:
            settle_exit(leaving)
            set_exit_code(leaving)
            raise
        except BaseException as raised:
            _show_both(raised, value)
        finally:
            afterwards()
        if when_shown is not None:
            when_shown()

    sys.excepthook = show


def _show_both(hooks: BaseException, error: BaseException) -> None:
    """Print both tracebacks, as Python does if the hook itself raises."""
    if sys.stderr is None:
        return
    own = hooks.__traceback__
    for text, each, frames in (
        ("Error in sys.excepthook:", hooks, own.tb_next if own else None),
        ("\nOriginal exception was:", error, error.__traceback__),
    ):
        print(text, file=sys.stderr)
        sys.__excepthook__(type(each), each, frames)
