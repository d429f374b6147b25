"""Reads from /proc how busy the node is, and how much its workers use.

Each reading holds the kernel's counters as they are; `rates` of two readings gives what a sample shows. A file that
is not there, as in some containers, makes its values None and nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass

_SECTOR = 512  # bytes, in /proc/diskstats whatever the disk's own sector is
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_VIRTUAL_DISKS = ("loop", "ram", "zram", "dm-", "md")  # what they do is counted again in the disks below them


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The counters of one moment; `at` is in monotonic seconds, CPU times are in ticks, all else in bytes."""

    at: float
    cpu: tuple[int, int] | None  # busy, all
    load: float | None
    memory: tuple[int, int] | None  # used, total
    disk: tuple[int, int] | None  # read, written
    network: tuple[int, int] | None  # received, sent
    workers_cpu: int | None
    workers_memory: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What happened between two readings: percent, and bytes a second; None where it is not known."""

    cpu_percent: float | None
    disk_read: float | None
    disk_written: float | None
    network_received: float | None
    network_sent: float | None
    workers_cpu_percent: float | None


def read_usage(pids: Collection[int], *, at: float, proc: str = "/proc") -> Reading:
    """Read the counters now.

    Args:
        pids: the process ids of the workers.
        at: monotonic seconds.
        proc: the folder of proc(5).
    """
    workers = [found for pid in pids if (found := parse_process(_read(f"{proc}/{pid}/stat"))) is not None]
    return Reading(
        at=at,
        cpu=parse_cpu(_read(f"{proc}/stat", 512)),
        load=parse_load(_read(f"{proc}/loadavg")),
        memory=parse_memory(_read(f"{proc}/meminfo", 512)),
        disk=parse_disks(_read(f"{proc}/diskstats")),
        network=parse_network(_read(f"{proc}/net/dev")),
        workers_cpu=sum(ticks for ticks, _ in workers) if workers else None,
        workers_memory=sum(pages for _, pages in workers) * _PAGE if workers else None,
    )


def rates(before: Reading | None, now: Reading) -> Usage:
    """Return what happened between two readings; a counter that went back, as after a restart, gives None."""
    seconds = 0.0 if before is None else now.at - before.at
    if before is None or seconds <= 0:
        return Usage(
            cpu_percent=None,
            disk_read=None,
            disk_written=None,
            network_received=None,
            network_sent=None,
            workers_cpu_percent=None,
        )
    busy, ticks = _pair(before.cpu, now.cpu, 1.0)
    read, written = _pair(before.disk, now.disk, seconds)
    received, sent = _pair(before.network, now.network, seconds)
    workers = _rate(before.workers_cpu, now.workers_cpu, seconds * _TICKS)
    return Usage(
        cpu_percent=round(100 * busy / ticks, 1) if busy is not None and ticks else None,
        disk_read=read,
        disk_written=written,
        network_received=received,
        network_sent=sent,
        workers_cpu_percent=None if workers is None else round(100 * workers, 1),
    )


def parse_cpu(stat: str) -> tuple[int, int] | None:
    """Return the busy and all ticks of all cores, from /proc/stat; waiting for a disk counts as idle."""
    words = stat.partition("\n")[0].split()
    if len(words) < 6 or words[0] != "cpu":
        return None
    ticks = [int(word) for word in words[1:9]]  # guest time is in user time already
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def parse_load(loadavg: str) -> float | None:
    """Return the load of the last minute, from /proc/loadavg."""
    words = loadavg.split()
    return float(words[0]) if words else None


def parse_memory(meminfo: str) -> tuple[int, int] | None:
    """Return the used and all memory in bytes, from /proc/meminfo; what the kernel can give up is not used."""
    found = {line.split(":")[0]: line.split() for line in meminfo.splitlines() if ":" in line}
    total, available = found.get("MemTotal"), found.get("MemAvailable")
    if total is None or available is None or len(total) < 2 or len(available) < 2:
        return None
    return (int(total[1]) - int(available[1])) * 1024, int(total[1]) * 1024


def parse_disks(diskstats: str) -> tuple[int, int] | None:
    """Return the bytes read from and written to the node's whole disks, from /proc/diskstats."""
    rows = [words for line in diskstats.splitlines() if len(words := line.split()) >= 10]
    names = {words[2] for words in rows}
    whole = [words for words in rows if not words[2].startswith(_VIRTUAL_DISKS) and not _is_part(words[2], names)]
    if not rows:
        return None
    return sum(int(words[5]) for words in whole) * _SECTOR, sum(int(words[9]) for words in whole) * _SECTOR


def parse_network(dev: str) -> tuple[int, int] | None:
    """Return the bytes received and sent by all interfaces but the loopback, from /proc/net/dev."""
    rows = [(name.strip(), rest.split()) for name, colon, rest in _partitions(dev.splitlines()[2:]) if colon]
    if not rows:
        return None
    real = [words for name, words in rows if name != "lo" and len(words) >= 9]
    return sum(int(words[0]) for words in real), sum(int(words[8]) for words in real)


def parse_process(stat: str) -> tuple[int, int] | None:
    """Return a process's CPU ticks, its collected children's included, and its resident pages, from its stat file."""
    fields = stat.rpartition(")")[2].split()  # the name before may have spaces and parentheses
    return (sum(int(field) for field in fields[11:15]), int(fields[21])) if len(fields) > 21 else None


def _is_part(name: str, names: Iterable[str]) -> bool:
    """Return whether a name is a partition's, such as sda1 beside sda or nvme0n1p2 beside nvme0n1."""
    stem = name.rstrip("0123456789")
    return stem != name and (stem in names or (stem.endswith("p") and stem[:-1] in names))


def _partitions(lines: Iterable[str]) -> Iterable[tuple[str, str, str]]:
    return (line.partition(":") for line in lines)


def _pair(
    before: tuple[int, int] | None, now: tuple[int, int] | None, seconds: float
) -> tuple[float | None, float | None]:
    if before is None or now is None:
        return None, None
    return _rate(before[0], now[0], seconds), _rate(before[1], now[1], seconds)


def _rate(before: int | None, now: int | None, seconds: float) -> float | None:
    if before is None or now is None or now < before:
        return None
    return round((now - before) / seconds, 3)


def _read(path: str, size: int = 1 << 20) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(descriptor, size).decode(errors="replace")
    except OSError:  # the process has ended in between
        return ""
    finally:
        os.close(descriptor)
