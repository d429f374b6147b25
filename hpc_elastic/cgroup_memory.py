"""Finds the memory cgroup of this process, version 1 or 2, and says how much memory there is and how much is free.

The limit may be an ancestor's, as Slurm's is the job's or the step's: the level with the least room counts.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass

NO_LIMIT = 1 << 60  # version 1 says 9223372036854771712 for "no limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryMount:
    """Where a hierarchy of memory cgroups is mounted: its version, its mount point, and which cgroup is at its root."""

    version: int
    point: str
    root: str


def parse_mounts(text: str) -> list[MemoryMount]:
    """Return the memory hierarchies of a `/proc/PID/mountinfo`, version 1 first."""
    mounts = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if len(fields) < 5 or len(kind) < 3:
            continue
        version = 2 if kind[0] == "cgroup2" else 1 if kind[0] == "cgroup" and "memory" in kind[2].split(",") else 0
        if version:
            mounts.append(MemoryMount(version=version, point=_unescape(fields[4]), root=_unescape(fields[3])))
    return sorted(mounts, key=lambda mount: mount.version)


def _unescape(path: str) -> str:
    return re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), path)


def parse_cgroup(text: str, version: int) -> str | None:
    """Return the memory cgroup that a `/proc/PID/cgroup` names, None if it names none of this version."""
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if (version == 1 and "memory" in controllers.split(",")) or (
            version == 2 and number == "0" and not controllers
        ):
            return path
    return None


def find_levels(mount: MemoryMount, path: str) -> list[str]:
    """Return the directories of a cgroup and of its ancestors, from the innermost out; [] if they cannot be seen."""
    root = mount.root.rstrip("/")
    if ".." in path.split("/") or not (path == root or path.startswith(root + "/")):
        return []
    names = [name for name in path[len(root) :].split("/") if name]
    return ["/".join([mount.point, *names[:count]]) for count in range(len(names), -1, -1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRoom:
    """The memory that this process and those beside it may use, in bytes, and how much of that is free."""

    total: int
    free: int


def read_room(root: str = "") -> MemoryRoom:
    """Return the room in the cgroups of this process and on the node, whichever is less; files count as free.

    Args:
        root: the folder in which `proc` and the mounted hierarchies are looked for.
    """
    node = _read(root, "/proc/meminfo")
    total, free = _kibibytes(node, "MemTotal"), _kibibytes(node, "MemAvailable")
    cgroups, mounts = _read(root, "/proc/self/cgroup"), parse_mounts(_read(root, "/proc/self/mountinfo"))
    for mount in mounts:
        path = parse_cgroup(cgroups, mount.version)
        for level in find_levels(mount, path) if path is not None else []:
            limit, used = _limit_and_use(root, mount.version, level)
            if limit is not None and limit < NO_LIMIT:
                total, free = min(total, limit), min(free, limit - used)
    return MemoryRoom(total=total, free=max(0, free))


def _limit_and_use(root: str, version: int, level: str) -> tuple[int | None, int]:
    """Return the limit of a cgroup, None if it has none, and how much of it is in use.

    Of version 2 the lower one counts: beyond `memory.high`, which Slurm sets as well, and other than `memory.max` where
    `AllowedRAMSpace` is over 100, the kernel slows the processes down until they do next to nothing.
    """
    names = ["memory.limit_in_bytes"] if version == 1 else ["memory.max", "memory.high"]
    limits = [int(text) for name in names if (text := _read(root, f"{level}/{name}").strip()).isdigit()]
    used = _read(root, f"{level}/{'memory.usage_in_bytes' if version == 1 else 'memory.current'}").strip()
    if not limits or not used.isdigit():
        return None, 0
    prefix, stat = "total_" if version == 1 else "", _read(root, f"{level}/memory.stat")
    files = sum(_field(stat, f"{prefix}{name}") for name in ("inactive_file", "active_file"))
    return min(limits), max(0, int(used) - files)


def _kibibytes(text: str, name: str) -> int:
    found = re.search(rf"(?m)^{name}:\s+(\d+) kB$", text)
    return int(found[1]) * 1024 if found else NO_LIMIT


def _field(text: str, name: str) -> int:
    found = re.search(rf"(?m)^{name} (\d+)$", text)
    return int(found[1]) if found else 0


def _read(root: str, path: str) -> str:
    with contextlib.suppress(OSError), open(root + path, encoding="utf-8", errors="replace") as file:
        return file.read(1 << 20)
    return ""
