"""The cgroups of machines: one below the root of each hierarchy, which is the root that its machine sees.

They are those of version 1. Where hierarchies of both versions are mounted, slurmd cannot be shown version 2 alone: it
reads /proc/self/cgroup and ends with "Hybrid mode is not supported" (22.05). Most clusters have version 2; what a job
notices is the same: its processes are found wherever they went, its cores and its memory are confined.

A cgroup is no process, so nobody's death removes it: `remove_cgroups` does when a machine has lost its power, and
whoever starts the next sandbox removes those of a keeper that was killed.
"""

from __future__ import annotations

import contextlib
import os
import time

from tests.slurm_sandbox.configuration import Layout

_CONTROLLERS = ("freezer", "cpuset", "memory", "cpuacct", "cpu")
_REMOVED_WITHIN_S = 10.0


def why_no_cgroups() -> str | None:
    """Why no sandbox of this computer can use cgroups; None if one can."""
    roots = _roots()
    missing = [name for name in _CONTROLLERS if name not in roots]
    return f"this computer mounts no cgroup hierarchy of version 1 of {', '.join(missing)}" if missing else None


def cgroup_mounts(layout: Layout) -> list[str]:
    """The controllers whose hierarchies a machine mounts."""
    return list(_CONTROLLERS) if layout.has_cgroups else []


def join_cgroups(layout: Layout, machine: str, pid: int) -> None:
    """Makes a machine's cgroups and puts its process 1 into them."""
    roots = _roots() if layout.has_cgroups else {}
    for root in roots.values():
        folder = os.path.join(root, layout.login_interface, machine)
        os.makedirs(folder)
        for level in (os.path.dirname(folder), folder):
            for name in ("cpuset.cpus", "cpuset.mems"):  # empty in a new one, and then nothing can run there
                if os.path.exists(os.path.join(level, name)):
                    _write(os.path.join(level, name), _read(os.path.join(os.path.dirname(level), name)))
        _write(os.path.join(folder, "cgroup.procs"), str(pid))


def remove_cgroups(layout: Layout, machine: str = "") -> None:
    """Removes the cgroups of a machine without power, or of all; fine if there are none.

    A cgroup can be removed a moment after the end of its last process.
    """
    end = time.monotonic() + _REMOVED_WITHIN_S
    for root in _roots().values():
        folder = os.path.join(root, layout.login_interface, machine)
        while os.path.exists(folder):
            for path, _, _ in os.walk(folder, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(path)
            if time.monotonic() > end:
                break
            if os.path.exists(folder):
                time.sleep(0.01)


def _roots() -> dict[str, str]:
    """Where the hierarchies of version 1 are mounted, by controller."""
    with open("/proc/mounts") as mounts:
        rows = [line.split(" ") for line in mounts]
    found = [(row[1], row[3].split(",")) for row in rows if row[2] == "cgroup"]
    return {name: place for place, options in found for name in options if name in _CONTROLLERS}


def _read(path: str) -> str:
    with open(path) as file:
        return file.read().strip()


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
