"""Finds how many CPUs the cgroups of this process allow it, version 1 or 2, where they have a quota."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

_QUOTA_V1: tuple[str, ...] = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
_QUOTA_V2: tuple[str, ...] = ("cpu.max",)


def cpu_quotas(root: str = "/") -> Iterator[float]:
    """Yield the number of CPUs that each cgroup of this process allows, for those that have a quota.

    Args:
        root: the directory that holds /proc and /sys.

    See cgroups(7), and cpu.max in the kernel's Documentation/admin-guide/cgroup-v2.rst.
    """
    mount = os.path.join(root, "sys/fs/cgroup")
    for line in _read(os.path.join(root, "proc/self/cgroup")).splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if not controllers:
            yield from _quotas_below(mount, path, _QUOTA_V2)
        elif "cpu" in controllers.split(","):
            yield from _quotas_below(os.path.join(mount, controllers), path, _QUOTA_V1)


def _quotas_below(top: str, path: str, files: tuple[str, ...]) -> Iterator[float]:
    """Yield the quotas of a cgroup and of all its parents, in CPUs."""
    inside = os.path.normpath(f"/{path.lstrip('/')}")  # begins with .. if the cgroup namespace has a lower root
    folder = os.path.normpath(top + inside)
    while folder.startswith(top):
        with contextlib.suppress(ValueError, ZeroDivisionError):
            quota, period = map(int, " ".join(_read(os.path.join(folder, file)) for file in files).split())
            if quota > 0:
                yield quota / period
        folder = os.path.dirname(folder)


def _read(path: str) -> str:
    """Return the text of a small file, "" if it cannot be read."""
    with contextlib.suppress(OSError, UnicodeDecodeError), open(path, encoding="utf-8") as file:
        return file.read().strip()
    return ""
