"""Ends a process that has torch loaded where nothing of the user's is left to do.

torch 2.13 does not survive the end of its own interpreter every time. A gloo thread drops the
tensors of a collective a moment after the collective is complete and asks for the GIL to do so;
until Python 3.14 a thread that asks while the interpreter takes itself apart is unwound
(PyThread_exit_thread), inside a C++ destructor, which ends the process: "terminate called without
an active exception", SIGABRT, for a rank that had succeeded (seen in 3 of 8 runs of 3 ranks on 2
busy cores, under torchrun as well). That taking apart also costs 0.2 to 0.4 s.

So everything is done that Python does before it: threads are joined, atexit functions called, the
names of `__main__` dropped and their destructors run, files flushed, Python's and C's. Then the
process leaves.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import io
import os
import sys


class Ending:
    """The end of this process, as soon as its exit code is known.

    Make it before the user's code runs: atexit functions are called last one first.
    """

    def __init__(self) -> None:
        self._exit_code: int | None = None
        atexit.register(self._leave)

    def set_exit_code(self, error: BaseException | None) -> None:
        """The exit code that Python gives a script which ended with `error`; None: with its last line."""
        if error is None:
            self._exit_code = 0
        elif isinstance(error, SystemExit):
            code = error.code
            self._exit_code = 0 if code is None else code & 0xFF if isinstance(code, int) else 1
        elif not isinstance(error, KeyboardInterrupt):  # Python dies of SIGINT after that, in its own way
            self._exit_code = 1

    def _leave(self) -> None:
        if self._exit_code is None or "torch" not in sys.modules:
            return
        _drop_main()
        if not _flush_standard_files():
            return  # Python says so itself, and has an exit code for it
        _flush_open_files()
        ctypes.CDLL(None).fflush(None)
        os._exit(self._exit_code)


def _drop_main() -> None:
    """As CPython does first: names with one underscore, then the others, then what only cycles hold."""
    names = vars(sys.modules["__main__"])
    for name in [*(name for name in names if name[:1] == "_" != name[1:2]), *names]:
        if name != "__builtins__":
            names[name] = None
    gc.collect()


def _flush_standard_files() -> bool:
    try:
        for file in (sys.stdout, sys.stderr):
            if file is not None and not file.closed:
                file.flush()
    except Exception:
        return False
    return True


def _flush_open_files() -> None:
    """What other modules than `__main__` hold open, Python would flush when it drops them."""
    for held in gc.get_objects():
        # Not isinstance: it asks an object for its `__class__`, and torch has some that answer with a warning.
        if issubclass(type(held), (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)):
            try:
                if not held.closed:
                    held.flush()
            except BaseException:
                continue
