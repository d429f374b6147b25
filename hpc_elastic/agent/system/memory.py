"""Reads what the kernel says of memory: kills of the out-of-memory killer, and the peak and limit of the own cgroup.

Sources. The memory cgroup of the agent, whose workers are in it: version 1 (`memory.oom_control`, since Linux 4.13) or
version 2 (`memory.events`); the limit may be an ancestor's, as Slurm's is the job's or the step's. The kernel's log
(`/dev/kmsg`), which names the process, also one in another cgroup; most nodes show it to root only. `/proc/vmstat`, for
the whole node.
"""

from __future__ import annotations

import contextlib
import re

from hpc_elastic.agent.system.kernel_log import read_kernel_log
from hpc_elastic.cgroup_memory import NO_LIMIT, find_levels, parse_cgroup, parse_mounts
from hpc_elastic.failures.evidence import MemoryUse

_KILL = re.compile(r"oom_memcg=([^,\n]*),task_memcg=[^,\n]*,task=.*,pid=(\d+),")  # linux/mm/oom_kill.c, since 4.19
_KILLED = re.compile(r"Killed process (\d+) ")


class MemoryWatch:
    """The kernel's kills for memory since a mark.

    Args:
        root: the folder in which `proc`, `dev` and the mounted hierarchies are looked for.
    """

    def __init__(self, root: str = "") -> None:
        self._root = root
        self._version = 0
        self._levels: list[str] = []
        self._kills: int | None = None
        self._host_kills = 0

    def mark(self) -> None:
        """Take the counts from which `look` counts; find the own cgroup, in which the workers will be.

        That is looked for again only if it cannot be read any more: it takes 1.3 ms of each restart.
        """
        self._kills = self._count()
        if self._kills is None:
            self._version, self._levels = self._find()
            self._kills = self._count()
        self._host_kills = self._count_host()

    def look(self, pid: int) -> tuple[MemoryUse | None, int]:
        """Return what the cgroup says (None if it cannot be read), and the kills on the whole node, since the mark.

        Args:
            pid: the process id of a worker that was killed, which the kernel's log may name; 0 for none.
        """
        host_kills = max(0, self._count_host() - self._host_kills)
        now = self._count()
        own = None if now is None or self._kills is None else max(0, now - self._kills)
        logged = self._find_in_log(pid) if host_kills and pid else None
        if logged:
            version, levels = self._levels_of(logged)
            return self._use(own or 1, version, levels), host_kills
        if own:
            return self._use(own, self._version, self._levels), host_kills
        if logged is not None:
            return MemoryUse(oom_kills=1), host_kills
        return (None if own is None else self._use(0, self._version, self._levels)), host_kills

    def _find(self) -> tuple[int, list[str]]:
        cgroups = self._read("/proc/self/cgroup")
        for mount in parse_mounts(self._read("/proc/self/mountinfo")):
            path = parse_cgroup(cgroups, mount.version)
            levels = find_levels(mount, path) if path is not None else []
            if levels and self._read_kills(mount.version, levels[0]) is not None:
                return mount.version, levels
        return 0, []

    def _levels_of(self, cgroup: str) -> tuple[int, list[str]]:
        for mount in parse_mounts(self._read("/proc/self/mountinfo")):
            levels = find_levels(mount, cgroup)
            if levels and self._read_kills(mount.version, levels[0]) is not None:
                return mount.version, levels
        return 0, []

    def _use(self, kills: int, version: int, levels: list[str]) -> MemoryUse:
        limit, peak = min(
            ((limit, self._read_peak(version, level)) for level in levels if (limit := self._limit(version, level))),
            key=lambda found: found[0],
            default=(None, None),
        )
        return MemoryUse(oom_kills=kills, peak=peak, limit=limit)

    def _count(self) -> int | None:
        return self._read_kills(self._version, self._levels[0]) if self._levels else None

    def _read_kills(self, version: int, level: str) -> int | None:
        return _field(self._read(f"{level}/{'memory.oom_control' if version == 1 else 'memory.events'}"), "oom_kill")

    def _limit(self, version: int, level: str) -> int | None:
        limit = _number(self._read(f"{level}/{'memory.limit_in_bytes' if version == 1 else 'memory.max'}"))
        return limit if limit is not None and limit < NO_LIMIT else None

    def _read_peak(self, version: int, level: str) -> int | None:
        return _number(self._read(f"{level}/{'memory.max_usage_in_bytes' if version == 1 else 'memory.peak'}"))

    def _count_host(self) -> int:
        return _field(self._read("/proc/vmstat"), "oom_kill") or 0

    def _find_in_log(self, pid: int) -> str | None:
        """Return the cgroup whose limit made the kernel kill a process, "" if it is not said, None if it did not.

        The newest record counts: process ids come again. Of many kills in a few seconds the kernel names ten cgroups.
        """
        cgroup, last = "", None
        for line in (line for record in read_kernel_log(self._root) for line in record.splitlines()):
            found = _KILL.search(line)
            if found and int(found[2]) == pid:
                cgroup = last = found[1]
            killed = _KILLED.search(line)
            if killed and int(killed[1]) == pid:
                cgroup, last = "", cgroup
        return last

    def _read(self, path: str) -> str:
        with contextlib.suppress(OSError), open(self._root + path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 20)
        return ""


def _field(text: str, name: str) -> int | None:
    found = re.search(rf"(?m)^{name} (\d+)$", text)
    return int(found[1]) if found else None


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdigit() else None
