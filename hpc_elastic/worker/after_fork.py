"""Resets a fork of the server to the state of `python script.py` when its first line runs.

What is not undone: modules that the server has imported stay loaded, what they have changed in the
interpreter (warning filters, log handlers) stays changed, and the hashes of strings are the same in all
forks of one server.
"""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

from hpc_elastic.worker import own_variables

Handler = Callable[[int, FrameType | None], Any] | int | None

# Slurm sends these signals to every process of a step; the agent decides what to do about them.
IGNORED = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2),
)


class SignalKeeper:
    """Ignores Slurm's signals in the server, and keeps their original handlers for the forks."""

    def __init__(self) -> None:
        self._handlers: dict[signal.Signals, Handler] = {}
        self.ignore()

    def ignore(self) -> None:
        """Ignore these signals, also those for which an import has set a handler meanwhile."""
        for number in IGNORED:
            handler = signal.signal(number, signal.SIG_IGN)
            if number not in self._handlers or handler is not signal.SIG_IGN:
                self._handlers[number] = handler

    def restore(self) -> None:
        """Restore the handlers that the signals would have without the server."""
        for number, handler in self._handlers.items():
            if handler is not None:  # None: it was not set by Python, and cannot be set again
                signal.signal(number, handler)


def take_standard_files(files: Sequence[int | None]) -> None:
    """Put descriptors in the place of 0, 1, 2 and make `sys.stdin`, `sys.stdout`, `sys.stderr` anew for them.

    Args:
        files: a descriptor for each; None for one that is kept.
    """
    for number, descriptor in enumerate(files):
        if descriptor is not None:
            os.dup2(descriptor, number)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        _renew_stream(name, number)


def _renew_stream(name: str, descriptor: int) -> None:
    """Set up a standard stream as CPython's `create_stdio` (pylifecycle.c); log handlers hold the same object."""
    stream: Any = getattr(sys, f"__{name}__")
    is_through = stream is not None and stream.write_through  # -u and PYTHONUNBUFFERED
    is_unbuffered = is_through and name != "stdin"
    mode = "r" if name == "stdin" else "w"
    buffer: Any = open(descriptor, f"{mode}b", buffering=0 if is_unbuffered else -1, closefd=False)  # noqa: SIM115
    raw = buffer if is_unbuffered else buffer.raw
    raw.name = f"<{name}>"
    if stream is None:  # the server was started without this file
        stream = io.TextIOWrapper.__new__(io.TextIOWrapper)
        encoding, errors = None, "backslashreplace" if name == "stderr" else "strict"
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    else:
        encoding, errors = stream.encoding, stream.errors
    stream.__init__(
        buffer,
        encoding,
        errors,
        newline="\n",
        line_buffering=not is_through and (name == "stderr" or raw.isatty()),
        write_through=is_through,
    )
    stream.mode = mode


def set_environment(
    environment: Mapping[str, str], set_by_imports: Mapping[str, tuple[str | None, str | None]]
) -> None:
    """Replace the whole environment, Python's and C's.

    Args:
        environment: the new one.
        set_by_imports: variables with their values before and after the imports. They are changed here as
            well, because no import in the fork will set them again; not those for which the fork has its own value.
    """
    zone = os.environ.get("TZ")
    os.environ.clear()
    os.environ.update(environment)
    for name, (before, after) in set_by_imports.items():
        if environment.get(name) == before and after is not None:
            os.environ[name] = after
        elif environment.get(name) == before:
            del os.environ[name]
    if os.environ.get("TZ") != zone:
        time.tzset()


def renew_interpreter_state() -> None:
    """Reset interpreter state that must not come from before the fork, such as caches, random seeds and start times.

    `random` draws a fresh seed by itself, and so do the names of temporary files.
    """
    importlib.invalidate_caches()  # there may be new files since the imports
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]  # Python does so for other threads only
    loaded: Mapping[str, Any] = sys.modules
    if "logging" in loaded:
        loaded["logging"]._startTime = _now_as(loaded["logging"]._startTime)
    if "tempfile" in loaded:
        loaded["tempfile"].tempdir = None
    if "multiprocessing.process" in loaded:
        loaded["multiprocessing.process"].ORIGINAL_DIR = os.getcwd()
        loaded["multiprocessing.process"].current_process().authkey = os.urandom(32)
    if "numpy.random" in loaded:
        loaded["numpy.random"].seed()
    if "torch.random" in loaded:  # a CUDA generator is made, with its own seed, when it is needed first
        loaded["torch.random"].default_generator.seed()
    own_variables.answer(os.environ)


def keep_finalizers_here() -> None:
    """Keep the fork from running, at its exit, the `weakref.finalize` callbacks that were registered in the server.

    A temporary folder that a preloaded module has made must not be deleted by a fork. torch's finalizers have no
    effect at the end of a process, and cost 40 ms there and 30 MiB of pages that are shared until then.
    """
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False


def _now_as(start: float) -> float:
    """Return the current time in the unit of `start`: nanoseconds in Python 3.13, else seconds."""
    return time.time_ns() if isinstance(start, int) else time.time()
