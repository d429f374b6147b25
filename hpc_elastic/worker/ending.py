"""Ends a process that has loaded torch, after the user's code is done, without the interpreter's own teardown.

torch 2.13 does not survive the end of its own interpreter every time. A gloo thread drops the
tensors of a collective a moment after the collective is complete and asks for the GIL to do so;
until Python 3.14 a thread that asks while the interpreter takes itself apart is unwound
(PyThread_exit_thread), inside a C++ destructor, which ends the process: "terminate called without
an active exception", SIGABRT, for a rank that had succeeded (seen in 3 of 8 runs of 3 ranks on 2
busy cores, under torchrun as well). The teardown also costs 0.2 to 0.4 s.

So everything is done here that Python does before the teardown: threads are joined, atexit functions called, the
names of `__main__` and of the user's other modules dropped and their destructors run, files flushed,
Python's and C's. Then the process leaves. Python stops daemon threads before it drops names, which is
not possible from here: while one still runs, the names are kept, because it may use them. They are kept
as well while a process group's own threads run: its destructor waits for one of those, which may wait
for the GIL for ever (seen with DistributedDataParallel after `destroy_process_group`).

torch's own finalizers are left out: they would unregister the operators of each of its 170 libraries,
which takes longer than everything else.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import io
import os
import sys
import weakref
from collections.abc import Sequence
from itertools import islice
from typing import Any

from hpc_elastic.worker.failure import exit_code_of
from hpc_elastic.worker.uncaught import PACKAGE_DIRECTORY

FLUSH_FAILED = 120  # CPython's exit code for it
PROCESS_GROUPS = ("pt_gloo", "gloo_", "pt_nccl", "pt_ucc", "pt_mpi")  # how names of its threads begin
FILES = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


class Ending:
    """Ends this process when it exits, once its exit code is known.

    Make the object before the user's code runs: atexit functions are called last one first.
    """

    def __init__(self) -> None:
        self._exit_code: int | None = None
        self._loaded_before = 0
        self._files: list[weakref.ref[io.IOBase]] = []
        atexit.register(self._leave)

    def begin(self) -> None:
        """Mark the point from which on imported modules may be the user's."""
        self._loaded_before = len(sys.modules)

    def remember_open_files(self) -> None:
        """Remember the open files before a `gc.freeze`, which hides them from a later search."""
        self._files = [weakref.ref(file) for file in _find_files()]

    def set_exit_code(self, error: BaseException | None) -> None:
        """Set the exit code that Python gives a script that ended with `error`, or normally if `error` is None."""
        if error is None:
            self._exit_code = 0
        elif isinstance(error, SystemExit):
            self._exit_code = exit_code_of(error)
        elif not isinstance(error, KeyboardInterrupt):  # Python dies of SIGINT after that, in its own way
            self._exit_code = 1
        if self._exit_code is not None:
            _keep_operators()

    def _leave(self) -> None:
        if self._exit_code is None or "torch" not in sys.modules:
            return
        if not _flush_standard_files():
            return  # Python reports that itself, and has an exit code for it
        if len(sys._current_frames()) == 1 and not has_process_group():
            _drop_users_names(self._loaded_before)
        is_flushed = _flush_standard_files()
        remembered = [file for reference in self._files if (file := reference()) is not None]
        _flush([*_find_files(), *remembered])
        ctypes.CDLL(None).fflush(None)
        os._exit(self._exit_code if is_flushed else FLUSH_FAILED)


def has_process_group() -> bool:
    """Return whether threads of a process group may run in this process; a variable of the user may hold the group."""
    try:
        threads = os.listdir("/proc/self/task")
    except OSError:  # the script has left no descriptor
        return True
    for thread in threads:
        try:
            with open(f"/proc/self/task/{thread}/comm", encoding="utf-8", errors="replace") as file:
                if file.read().startswith(PROCESS_GROUPS):
                    return True
        except OSError:  # it has ended
            continue
    return False


def _keep_operators() -> None:
    """Make `torch.library`'s finalizers, one a library, not run at the exit."""
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        alive = finalizer.peek()
        if alive is not None and getattr(alive[1], "__module__", None) == "torch.library":
            finalizer.atexit = False


def _drop_users_names(loaded_before: int) -> None:
    """Drop the user's objects as CPython does: those that `sys` holds, each module's names, then cycles."""
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, name):
            setattr(sys, name, None)
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    main, installed = sys.modules["__main__"], _installed()
    # Of a fork's other modules not even the reference counts are touched: each write would copy a page.
    imported = islice(reversed(sys.modules.values()), max(0, len(sys.modules) - loaded_before))
    for module in [main, *(module for module in imported if _is_users(module, installed))]:
        _drop_names(vars(module))
    gc.collect()


def _installed() -> tuple[str, ...]:
    """Return the folders of modules that are not the user's: this Python, and torch, perhaps from PYTHONPATH."""
    torch = [os.path.dirname(path) + os.sep for path in getattr(sys.modules["torch"], "__path__", ())]
    return (sys.base_prefix, sys.prefix, PACKAGE_DIRECTORY, *torch)


def _is_users(module: object, installed: tuple[str, ...]) -> bool:
    """Return whether a module is the user's: not part of Python or torch, nor installed beside them or on the path."""
    file = getattr(module, "__dict__", {}).get("__file__")
    if not isinstance(file, str) or file.startswith(installed):
        return False
    return "/site-packages/" not in file and "/dist-packages/" not in file


def _drop_names(names: dict[str, Any]) -> None:
    """Set all names of a module to None, those with one underscore first."""
    for name in [*(name for name in names if name[:1] == "_" != name[1:2]), *names]:
        if name != "__builtins__":
            names[name] = None


def _flush_standard_files() -> bool:
    try:
        for file in (sys.stdout, sys.stderr):
            if file is not None and not file.closed:
                file.flush()
    except Exception:
        return False
    return True


def _find_files() -> list[io.IOBase]:
    objects = gc.get_objects()
    # Not isinstance: it asks an object for its `__class__`, and torch has some that answer with a warning.
    kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, FILES)}
    return [held for held in objects if type(held) in kinds]


def _flush(files: Sequence[io.IOBase]) -> None:
    """Flush the files that modules other than `__main__` hold open, as Python would when it drops them."""
    for file in files:
        try:
            if not file.closed:
                file.flush()
        except BaseException:
            continue
