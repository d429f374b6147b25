"""What a run holds at one moment: processes, descriptors, threads, memory, shared memory, files; and what has grown."""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

from hpc_elastic.processes import Process, all_processes, with_descendants
from hpc_elastic.state_memory import MEMORY_NAME

SHARED_MEMORY = Path("/dev/shm")
# What a process is, by a word of its command line. Their memory counts: they live as long as the allocation.
LASTING = {
    b"hpc_elastic.agent.main": "agent",
    b"hpc_elastic.agent.guard.process": "guard",
    b"hpc_elastic.agent.keeper.process": "keeper",
    b"hpc_elastic.worker.store_host": "store host",
    b"hpc_elastic.worker.fork_server": "fork server",
}
_RESIDENT = re.compile(r"^(?:RssAnon|RssShmem|VmSwap):\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """By what they are: how many processes there are, and what all of that kind hold together."""

    cycle: int
    processes: Counter[str]
    descriptors: Counter[str] = field(default_factory=Counter)
    threads: Counter[str] = field(default_factory=Counter)
    mappings: Counter[str] = field(default_factory=Counter)
    memory_kib: Counter[str] = field(default_factory=Counter)
    states_kib: dict[int, int] = field(default_factory=dict)  # of memories of training states, by inode
    shared_memory: frozenset[str] = frozenset()  # what nobody holds, of all in /dev/shm that is newer than the run
    temporary: frozenset[str] = frozenset()
    run_files: int = 0
    run_bytes: int = 0

    def counts(self) -> list[Counter[str]]:
        """Return the counts that do not change while the run stands still."""
        return [self.processes, self.descriptors, self.threads]

    def __str__(self) -> str:
        rows = []
        for kind in self.processes:
            held = f"{self.descriptors[kind]} descriptors, {self.threads[kind]} threads, {self.mappings[kind]} mappings"
            rows.append(f"  {self.processes[kind]} {kind}: {held}, {self.memory_kib[kind]} KiB")
        rows.append(f"  {len(self.states_kib)} memories of states: {sum(self.states_kib.values())} KiB")
        left = f"  {len(self.shared_memory)} in shared memory, {len(self.temporary)} temporary files"
        directory = f"  run directory: {self.run_files} files, {self.run_bytes / 1024:.0f} KiB"
        return "\n".join([f"after {self.cycle} cycles", *sorted(rows), left, directory])


def read(cycle: int, *, root: int, run: Path, temporary: Path, since: float) -> Reading:
    """Looks at a run.

    Args:
        cycle: how many attempts have failed.
        root: the process that the run's others descend from.
        run: the run directory.
        temporary: the run's folder for temporary files.
        since: shared memory that is older, in Unix seconds, is none of the run's.
    """
    reading = Reading(
        cycle=cycle,
        processes=Counter(),
        shared_memory=frozenset(_abandoned_shared_memory(since)),
        temporary=frozenset(path.name for path in temporary.rglob("*")),
        **_size(run),  # type: ignore[arg-type]
    )
    processes = all_processes()
    for process in with_descendants([one for one in processes if one.pid == root], processes):
        with contextlib.suppress(OSError):
            _add(reading, process)
    return reading


def _add(reading: Reading, process: Process) -> None:
    place = Path(f"/proc/{process.pid}")
    words = (place / "cmdline").read_bytes().split(b"\0")
    kind = next((LASTING[word] for word in words if word in LASTING), "worker" if process.is_alive else "zombie")
    if b"job.sh" in b" ".join(words):
        kind = "script"
    reading.processes[kind] += 1
    if kind in LASTING.values():
        status = (place / "status").read_text()
        reading.descriptors[kind] += len(list((place / "fd").iterdir()))
        reading.states_kib.update(_states_of(place))
        reading.threads[kind] += len(list((place / "task").iterdir()))
        reading.mappings[kind] += len((place / "maps").read_bytes().splitlines())
        reading.memory_kib[kind] += sum(map(int, _RESIDENT.findall(status)))


def _states_of(place: Path) -> Iterator[tuple[int, int]]:
    """Yield inode and KiB of the memories of training states that a process has open."""
    for link in (place / "fd").iterdir():
        with contextlib.suppress(OSError):
            if MEMORY_NAME in os.readlink(link):
                status = link.stat()
                yield status.st_ino, status.st_blocks // 2


def _size(run: Path) -> dict[str, int]:
    sizes = [os.lstat(os.path.join(at, name)).st_size for at, _, names in os.walk(run) for name in names]
    return {"run_files": len(sizes), "run_bytes": sum(sizes)}


def _abandoned_shared_memory(since: float) -> Iterator[str]:
    """Files of /dev/shm and System V segments that no process has open, mapped or attached."""
    held = _held_shared_memory()
    for path in SHARED_MEMORY.iterdir():
        with contextlib.suppress(OSError):
            if path.stat().st_mtime >= since and str(path) not in held:
                yield path.name
    for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[6]) == 0 and int(fields[13]) >= since:
            yield f"segment {fields[1]}"


def _held_shared_memory() -> set[str]:
    held: set[str] = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                held |= set(re.findall(rf"{SHARED_MEMORY}/\S+", Path(f"/proc/{entry}/maps").read_text()))
            with contextlib.suppress(OSError):
                held |= {os.readlink(link) for link in Path(f"/proc/{entry}/fd").iterdir()}
    return held


def grown(first: Reading, last: Reading, *, memory: float) -> Iterator[str]:
    """Return what has grown or changed between two readings: each is a leak.

    Args:
        first: after the warm-up.
        last: at the end.
        memory: by what part all memory may grow.
    """
    if first.processes != last.processes:
        yield f"processes: {dict(first.processes)} have become {dict(last.processes)}"
    for what, before, after in (
        ("descriptors", first.descriptors, last.descriptors),
        ("threads", first.threads, last.threads),
    ):
        for kind in after:
            if after[kind] > before[kind]:
                yield f"{what} of {kind}: {before[kind]} have become {after[kind]}"
    cycles = last.cycle - first.cycle
    all_before, all_after = first.memory_kib.total(), last.memory_kib.total()
    if all_after > (1 + memory) * all_before:
        yield f"memory: {all_before} KiB have become {all_after}, over {memory:.0%} more"
    states_before, states_after = sum(first.states_kib.values()), sum(last.states_kib.values())
    if len(last.states_kib) > len(first.states_kib) or states_after > states_before:
        yield (
            f"states: {len(first.states_kib)} memories of {states_before} KiB have become {len(last.states_kib)} of "
            f"{states_after} KiB"
        )
    for kind in last.mappings:
        if last.mappings[kind] - first.mappings[kind] >= cycles / 2:
            yield f"mappings of {kind}: {first.mappings[kind]} have become {last.mappings[kind]}"
    for what, old, new in (
        ("shared memory", first.shared_memory, last.shared_memory),
        ("temporary files", first.temporary, last.temporary),
    ):
        if new - old:
            yield f"{what} that nobody holds: {', '.join(sorted(new - old))}"


def creeping(readings: Sequence[Reading], *, memory: float) -> Iterator[str]:
    """Yield a line for each kind of process whose memory grows steadily, by the median, by too much in all.

    A single step is none: on a machine where much is going on an agent that looks through /proc takes more, once.
    """
    cycles = readings[-1].cycle - readings[0].cycle
    for kind, before in readings[0].memory_kib.items():
        steps = [
            (later.memory_kib[kind] - one.memory_kib[kind]) / (later.cycle - one.cycle)
            for one, later in pairwise(readings)
        ]
        if steps and cycles * median(steps) > memory * before:
            yield f"memory of {kind}: {before} KiB, and {median(steps):.2f} KiB more each cycle"


def uneven(readings: Sequence[Reading]) -> Iterator[str]:
    """Whether the run directory grows by more each cycle than it did at first: an attempt's files must not.

    A tenth is allowed: numbers get longer.
    """
    steps = [(after.cycle - before.cycle, before, after) for before, after in pairwise(readings)]
    for what, sizes in (
        ("files", [(after.run_files - before.run_files) / cycles for cycles, before, after in steps]),
        ("bytes", [(after.run_bytes - before.run_bytes) / cycles for cycles, before, after in steps]),
    ):
        if sizes and sizes[-1] > 1.1 * sizes[0]:
            yield f"{what} of the run directory: {sizes[0]:.1f} a cycle have become {sizes[-1]:.1f}"
