"""Finds modules beside a script that a fork would miss, because the server has imported others of the same names.

`python script.py` looks into the script's folder before all others: there, `import yaml` means the
folder's own yaml.py. A fork would get the one that torch has brought.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Collection, Sequence
from importlib.machinery import all_suffixes
from types import ModuleType
from typing import NoReturn


def first_folder(kind: str, target: str, directory: str) -> str | None:
    """Return the folder that `sys.path` will begin with; None if -I, -P or PYTHONSAFEPATH forbids one.

    Args:
        kind: `script`, `module` or `function`.
        target: the script's path, the module's name, or the function's file.
        directory: the working directory.
    """
    if getattr(sys.flags, "safe_path", sys.flags.isolated):
        return None
    path = os.path.join(directory, target)
    if kind in ("module", "function"):
        return directory
    return path if os.path.isdir(path) else os.path.dirname(os.path.realpath(path))


def find_namesakes(folder: str, before: Collection[str]) -> list[str]:
    """Return the names of modules in `folder` that are loaded from elsewhere.

    Args:
        folder: a folder of the search path; one that cannot be read holds none.
        before: names that a spawned worker has loaded as well.
    """
    try:
        entries = os.listdir(folder)
    except OSError:
        return []
    names = {entry.partition(".")[0] for entry in entries}
    found = (name for name in names if name in sys.modules and name not in before)
    return sorted(name for name in found if _holds_module(folder, name) and not _is_from(sys.modules[name], folder))


def _holds_module(folder: str, name: str) -> bool:
    """Return whether `folder` holds this module; a subfolder without __init__ does not count: a later path may win."""
    return any(
        os.path.isfile(os.path.join(folder, f"{name}{inside}{suffix}"))
        for inside in ("", "/__init__")
        for suffix in all_suffixes()
    )


def _is_from(module: ModuleType, folder: str) -> bool:
    file = getattr(module, "__file__", None) or ""
    place = os.path.dirname(file)
    return os.path.realpath(os.path.dirname(place) if hasattr(module, "__path__") else place) == folder


def become_spawned(options: Sequence[str], arguments: Sequence[str]) -> NoReturn:
    """Replace this fork by a spawned worker: the same process, with nothing imported.

    Args:
        options: the interpreter's options.
        arguments: the arguments of `launch.py`.
    """
    # Python ignores these two signals, and an exec would keep them ignored.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    os.execv(sys.executable, [sys.executable, *options, os.path.join(package, "launch.py"), *arguments])
