"""Puts a signal off that meets its process amid a print or an import, of which its handler can do neither then.

Theory of operation. Python calls the handler of a signal between two instructions of the main thread, which may be in a
print or an import statement. The handler's own print into the same stream is refused then (`RuntimeError: reentrant
call`), and its import of the same module finds names missing. Both end by themselves: the handler returns, and a thread
sends the signal again a moment later. It is not put off for longer than `AT_MOST_S`, for after its TERM Slurm waits for
KillWait (30 s by default): a save that may fail is better than none.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import time
import types
from collections.abc import Callable

AGAIN_S = 0.02
AT_MOST_S = 10.0
_IMPORTS = "<frozen importlib._bootstrap>"

Handler = Callable[[int, types.FrameType | None], object]


class PostponedHandler:
    """Calls a signal handler when the main thread is in no print and in no import."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._since: float | None = None  # since when a signal is put off, in monotonic seconds

    def __call__(self, signum: int, frame: types.FrameType | None) -> None:
        """Handle the signal, or have it sent again."""
        now = time.monotonic()
        since = now if self._since is None else self._since
        if now - since < AT_MOST_S and (_imports(frame) or _prints()):
            self._since = since
            # `threading.Thread` takes a lock, which the main thread may have just now.
            _thread.start_new_thread(_send_again, (signum,))
            return
        self._since = None
        self._handler(signum, frame)


def install(signum: int, handler: Handler) -> None:
    """Have this process handle a signal so."""
    signal.signal(signum, PostponedHandler(handler))


def _send_again(signum: int) -> None:
    time.sleep(AGAIN_S)
    os.kill(os.getpid(), signum)


def _imports(frame: types.FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTS:
            return True
        frame = frame.f_back
    return False


def _prints() -> bool:
    """Return whether the main thread is in a write to standard output or error, both of which a flush tells."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except RuntimeError:
            return True
        except (AttributeError, OSError, ValueError):  # there is none, or nobody can write to it
            continue
    return False
