"""Finds files that another machine has made meanwhile, although an NFS client remembers that they were absent.

A Linux client that was asked for a name which was not there answers by itself for up to a minute (`acdirmax`) that it
is absent, however often it is asked. Opening the directory makes it ask the server whether that has changed since.
"""

from __future__ import annotations

import contextlib
import os


def ask_anew(path: str) -> None:
    """Make an NFS client forget that a file was absent, and the directories above it that were."""
    directory = os.path.dirname(path) or os.curdir
    try:
        _open_directory(directory)
    except FileNotFoundError:
        if (parent := os.path.dirname(directory)) != directory:
            ask_anew(directory if parent else os.path.join(os.curdir, directory))
            with contextlib.suppress(OSError):
                _open_directory(directory)
    except OSError:
        pass


def ask_anew_in(directory: str) -> None:
    """Make an NFS client forget which names were absent in a directory."""
    ask_anew(os.path.join(directory, "name"))


def exists(path: str) -> bool:
    """Return whether a file is there, also if another machine has made it since this one looked for it last."""
    if os.path.exists(path):
        return True
    ask_anew(path)
    return os.path.exists(path)


def open_anew(path: str, flags: int) -> int:
    """Open a file as `os.open` does, also if another machine has made it since this one looked for it last."""
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        ask_anew(path)
        return os.open(path, flags)


def _open_directory(path: str) -> None:
    os.close(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
