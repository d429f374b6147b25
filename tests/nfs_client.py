"""An NFS client's memory, laid over a local folder: names that were absent stay absent, sizes stay as they were seen.

What it does was seen on Linux 6.1 with NFSv4.2 and default options (`tests/soak/on_nfs`): a name that was asked for
while it was absent stays absent until its directory is opened; `stat` answers with what was seen last until the file
is opened. Time makes nothing fresh here, so a test cannot pass by luck.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest


class NfsClient:
    """Patches what opens, looks at and lists files below a folder; `written_elsewhere` is another machine.

    Args:
        folder: the mount point.
        patch: pytest's.
    """

    def __init__(self, folder: str, patch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._absent: set[str] = set()
        self._seen: dict[str, os.stat_result] = {}
        self._is_elsewhere = False
        self._lstat = os.lstat
        patch.setattr(os, "stat", self._stats(os.stat))
        patch.setattr(os, "lstat", self._stats(os.lstat))
        patch.setattr(os, "open", self._opens(os.open))
        patch.setattr(builtins, "open", self._opens(builtins.open))
        patch.setattr(os, "mkdir", self._makes(os.mkdir))
        patch.setattr(os, "scandir", self._lists(os.scandir))
        patch.setattr(os, "listdir", self._lists(os.listdir))

    @contextlib.contextmanager
    def written_elsewhere(self) -> Iterator[None]:
        """Let another machine act during the block: this client hears nothing of it."""
        self._is_elsewhere = True
        try:
            yield
        finally:
            self._is_elsewhere = False

    def _stats(self, real: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
        def stat(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
            name = self._name(path)
            if name is None or options.get("dir_fd") is not None:
                return real(path, *arguments, **options)
            with self._looked_up(name):
                if name not in self._seen:
                    self._seen[name] = real(path, *arguments, **options)
                return self._seen[name]

        return stat

    def _opens(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def open_file(path: Any, *arguments: Any, **options: Any) -> Any:
            name = self._name(path)
            if name is None or options.get("opener") is not None:  # which calls os.open
                return real(path, *arguments, **options)
            if _may_create(*arguments, **options):
                self._absent.discard(name)
            with self._looked_up(name):
                opened = real(path, *arguments, **options)
            self._seen.pop(name, None)
            self._ask_server(name)
            return opened

        return open_file

    def _makes(self, real: Callable[..., None]) -> Callable[..., None]:
        def make_directory(path: Any, *arguments: Any, **options: Any) -> None:
            real(path, *arguments, **options)
            if (name := self._name(path)) is not None:
                self._absent.discard(name)

        return make_directory

    def _lists(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def list_directory(path: Any = ".") -> Any:
            if (name := self._name(path)) is not None:
                with self._looked_up(name):
                    listed = real(path)
                self._ask_server(name)
                return listed
            return real(path)

        return list_directory

    @contextlib.contextmanager
    def _looked_up(self, name: str) -> Iterator[None]:
        """Refuse a name that is remembered as absent, or below one; remember it if it turns out to be."""
        above = name
        while above.startswith(self._folder):
            if above in self._absent:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
            above = os.path.dirname(above)
        try:
            yield
        except FileNotFoundError:
            missing = name
            while not self._is_there(os.path.dirname(missing)):
                missing = os.path.dirname(missing)
            self._absent.add(missing)
            raise

    def _is_there(self, name: str) -> bool:
        try:
            self._lstat(name)
        except OSError:
            return False
        return True

    def _ask_server(self, directory: str) -> None:
        self._absent = {name for name in self._absent if os.path.dirname(name) != directory}

    def _name(self, path: Any) -> str | None:
        """Return the whole name of a file below the mount point; None for others, and for the other machine."""
        if self._is_elsewhere or isinstance(path, int):
            return None
        name = os.path.abspath(os.fsdecode(path))
        return name if f"{name}{os.sep}".startswith(f"{self._folder}{os.sep}") else None


def _may_create(how: int | str = "r", *_: object, **__: object) -> bool:
    """Return whether a call of `os.open` or `open` may make the file."""
    return bool(how & os.O_CREAT) if isinstance(how, int) else bool({"w", "a", "x"} & set(how))
