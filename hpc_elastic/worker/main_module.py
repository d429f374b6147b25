"""Runs a script or a module as `__main__`, as `python script.py` and `python -m module` do."""

from __future__ import annotations

import builtins
import os
import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from types import CodeType, ModuleType
from typing import NoReturn


def set_command_line(arguments: Sequence[str], *, target: Sequence[str]) -> None:
    """Set `sys.argv` and `sys.orig_argv` as Python does if it is given `target`.

    Args:
        arguments: the user's.
        target: `[script]` or `["-m", module]`.
    """
    options = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv)]
    sys.orig_argv[:] = [*options, *target, *arguments]
    sys.argv[:] = [target[0], *arguments]


def put_on_path(directory: str) -> None:
    """Make `directory` the first of the search path, unless -I, -P or PYTHONSAFEPATH forbids it."""
    if not getattr(sys.flags, "safe_path", sys.flags.isolated):
        sys.path.insert(0, directory)


def compile_script(path: str) -> CodeType | None:
    """Read and compile a script; return None for a folder, a zip archive or a .pyc, which are not source.

    Raises:
        OSError: the script cannot be read.
        SyntaxError, ValueError, MemoryError, RecursionError: the script cannot be compiled.
    """
    if os.path.isdir(path):
        return None
    with open(path, "rb") as file:
        source = file.read()
    if b"\0" in source:
        return None
    return compile(source, absolute_name(path), "exec", dont_inherit=True)


def make_script_main(path: str) -> ModuleType:
    """Make the `__main__` of a script, which stays so until the process ends.

    (`runpy.run_path` would put the old one back before threads, atexit functions and unpickling
    are done with it.)
    """
    put_on_path(os.path.dirname(os.path.realpath(path)))
    module = _new_main()
    module.__file__ = absolute_name(path)
    module.__cached__ = None  # type: ignore[attr-defined]
    module.__loader__ = SourceFileLoader("__main__", module.__file__)
    return module


def run_module(name: str) -> None:
    """Run a module as a new `__main__`, by the function that `python -m` itself calls."""
    put_on_path(os.getcwd())
    _new_main()
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]


def make_empty_main() -> None:
    """Make the `__main__` of a function, which has no file: processes that multiprocessing spawns import none."""
    put_on_path("")
    _new_main()


def hand_over_to_python() -> NoReturn:
    """Replace this process by a plain Python with the same command line, which handles every kind of file.

    It keeps the process id, the session and the parent-death signal.
    """
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def forget_script(module: ModuleType) -> None:
    """Take the file's name out of `__main__`: CPython does so after a script's last line."""
    module.__dict__.pop("__file__", None)
    module.__dict__.pop("__cached__", None)


def absolute_name(path: str) -> str:
    """Return the path as CPython writes it into `__file__` and tracebacks: absolute if possible, else as given."""
    return path if os.path.isabs(path) else os.path.join(os.getcwd(), path)


def _new_main() -> ModuleType:
    module = ModuleType("__main__")
    if sys.version_info < (3, 14):  # made on demand from then on
        module.__annotations__ = {}
    module.__builtins__ = builtins  # type: ignore[attr-defined]
    sys.modules["__main__"] = module
    if "__mp_main__" in sys.modules:  # what children that are no forks call it; multiprocessing has set it already
        sys.modules["__mp_main__"] = module
    return module
