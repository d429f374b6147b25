"""A Python whose file system fails once: `python faulty_disk.py PROGRAM ARGUMENT...` runs a program of ours in it.

`fault.json` beside it says on which `node`, of the local backend or of Slurm, at which `operation` on which `path` (a
pattern) below `root`, with which `errno`, and whether `after` the operation was done: what NFS says when the answer was
lost. What failed is left in `failed`. With `until` every such operation fails until that file is there, or hangs if
there is no `errno`; with `spreads` so does this operation on all other paths from the first one on.
"""

from __future__ import annotations

import builtins
import fnmatch
import json
import os
import runpy
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent


class FaultyDisk:
    """Lets one operation of this process in a folder fail, the first that is meant, or all of them hang for a time."""

    def __init__(self, fault: dict[str, Any], told: Path) -> None:
        self._fault = fault
        self._told = told
        self._lock = threading.Lock()

    def install(self) -> None:
        for name in ("open", "link", "replace", "unlink", "mkdir", "scandir", "stat", "fsync", "write"):
            setattr(os, name, self._failing(name, getattr(os, name)))
        builtins.open = self._failing("open", builtins.open)

    def _failing(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def operate(*arguments: Any, **options: Any) -> Any:
            path = self._path(arguments[1 if name in ("link", "replace") else 0]) if arguments else None
            if path is None or not self._is_meant(name, path):
                return function(*arguments, **options)
            if "errno" not in self._fault:
                while not os.path.exists(self._fault["until"]):
                    time.sleep(0.02)
                return function(*arguments, **options)
            if self._fault["after"]:
                function(*arguments, **options)
            raise OSError(self._fault["errno"], os.strerror(self._fault["errno"]), path)

        return operate

    def _path(self, what: Any) -> str | None:
        """What is below the root, from there."""
        if isinstance(what, int):
            try:
                what = os.readlink(f"/proc/self/fd/{what}")
            except OSError:
                return None
        path = os.fspath(what) if isinstance(what, (str, os.PathLike)) else ""
        root = self._fault["root"] + "/"
        return path[len(root) :] if isinstance(path, str) and path.startswith(root) else None

    def _is_meant(self, name: str, path: str) -> bool:
        is_everywhere = self._fault.get("spreads") and self._told.exists()
        if name != self._fault["operation"] or not (is_everywhere or fnmatch.fnmatchcase(path, self._fault["path"])):
            return False
        with self._lock:
            if self._told.exists():
                until = self._fault.get("until")
                return until is not None and not os.path.exists(until)
            self._told.write_text(f"{name} {path}\n")
            return True


def main() -> None:
    """Runs the program."""
    del sys.argv[0]
    fault = json.loads((FOLDER / "fault.json").read_text())
    nodes = f"local{os.environ.get('HPC_ELASTIC_LOCAL_NODE_ID')}", os.environ.get("SLURMD_NODENAME")
    if fault["node"] in nodes:
        FaultyDisk(fault, FOLDER / "failed").install()
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
