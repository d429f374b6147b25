"""Takes a sample of the node and its ranks every ten seconds, and keeps the file of samples small.

Theory of operation: a thread reads the counters and hands the line to the thread that writes to the run directory,
which drops samples before all else when it is behind. A file that has grown beyond its limit loses at least half of its
lines, so that the others are spread evenly over the whole run; what comes after is dense again until the next time.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from hpc_elastic.agent.node.gpu_usage import GpuTool
from hpc_elastic.agent.node.usage import Reading, rates, read_usage
from hpc_elastic.agent.system.background import BackgroundThread
from hpc_elastic.codec import to_json
from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.rundir.records import RankSample, Sample
from hpc_elastic.rundir.store import append_line, write_bytes

SAMPLE_S = 10.0
GPU_TURN = 6  # the GPUs are asked in every sixth sample, for their tool takes a thousand times the time of all else
LARGEST_FILE = 4 * 1024 * 1024  # bytes: more than a day of a node with eight ranks, before a line is dropped
MOST_QUEUED = 100
_TIME = re.compile(rb'"time_ns": ?(\d+)')


class RankProgress(Protocol):
    """What a rank's heartbeats say."""

    @property
    def step(self) -> int | None:
        """The step of the last heartbeat; None if it named none."""

    @property
    def age_s(self) -> float | None:
        """The seconds since the last heartbeat; None before the first one."""


def no_progress() -> Mapping[int, RankProgress]:
    """Return the progress of no rank: the reader of an agent that reads no heartbeats."""
    return {}


class SampleFile:
    """The file of one node's samples.

    Args:
        path: the file's path.
        largest: its size in bytes beyond which it is thinned.
    """

    def __init__(self, path: str, *, largest: int = LARGEST_FILE) -> None:
        self._path = path
        self._largest = largest

    def append(self, sample: Sample) -> None:
        """Append a sample; it is lost if the run directory cannot be written. Blocks."""
        with contextlib.suppress(RunDirectoryError, OSError):
            append_line(self._path, to_json(sample))
            if os.path.getsize(self._path) > self._largest:
                with open(self._path, "rb") as file:
                    lines = file.read().splitlines(keepends=True)
                write_bytes(self._path, b"".join(thin(lines, len(lines) // 2)))


def thin(lines: Sequence[bytes], count: int) -> list[bytes]:
    """Return at most `count` of the lines and the last one, evenly spread over their time; a torn line is left out."""
    found = [(int(match[1]), line) for line in lines if (match := _TIME.search(line)) is not None]
    kept: list[bytes] = []
    if not found or count < 1:
        return kept
    (first, _), (last, newest) = found[0], found[-1]
    pause, due = max(1, last - first) / count, float(first)
    for time_ns, line in found[:-1]:
        if time_ns >= due:
            kept.append(line)
            due = max(due + pause, time_ns)
    return [*kept[:count], newest]


class Sampler:
    """The sampling of one node; it runs from `start` to `stop` in a thread of its own.

    Args:
        file: receives the samples.
        run: the run's id.
        node: this node's name.
        disk: the thread in which the file is written.
        workers: returns the attempt and the process ids of the workers; called in the sampling thread.
        gpus: the vendor's tool.
        progress: returns what each global rank's heartbeats say; called in the sampling thread.
        every_s: the seconds between two samples.
    """

    def __init__(
        self,
        file: SampleFile,
        *,
        run: str,
        node: str,
        disk: BackgroundThread,
        workers: Callable[[], tuple[int, tuple[int, ...]]],
        gpus: GpuTool,
        progress: Callable[[], Mapping[int, RankProgress]] = no_progress,
        every_s: float = SAMPLE_S,
    ) -> None:
        self._file = file
        self._run = run
        self._node = node
        self._disk = disk
        self._workers = workers
        self._progress = progress
        self._every_s = every_s
        self._gpus = gpus
        self._taken = 0
        self._before: tuple[int, Reading] | None = None
        self._is_over = threading.Event()

    def start(self) -> None:
        """Start to sample."""
        threading.Thread(target=self._sample_on, name="samples", daemon=True).start()

    def stop(self) -> None:
        """Take no more samples; one that is being taken is dropped."""
        self._is_over.set()

    def take(self, *, at: float, time_ns: int) -> Sample:
        """Take a sample. Blocks for as long as the GPU tool may take.

        Args:
            at: monotonic seconds.
            time_ns: nanoseconds since 1970.
        """
        attempt, pids = self._workers()
        now = read_usage(pids, at=at)
        before = None if self._before is None else self._before[1]
        if before is not None and self._before is not None and self._before[0] != attempt:
            before = replace(before, workers_cpu=None)  # it counted other workers
        self._before = (attempt, now)
        usage = rates(before, now)
        gpus = self._gpus.ask() if self._taken % GPU_TURN == 0 else ()
        self._taken += 1
        used, total = now.memory or (None, None)
        return Sample(
            time_ns=time_ns,
            run=self._run,
            node=self._node,
            attempt=attempt,
            cpu_percent=usage.cpu_percent,
            load=now.load,
            memory_used=used,
            memory_total=total,
            disk_read=usage.disk_read,
            disk_written=usage.disk_written,
            network_received=usage.network_received,
            network_sent=usage.network_sent,
            workers_cpu_percent=usage.workers_cpu_percent,
            workers_memory=now.workers_memory,
            gpus=gpus,
            ranks=tuple(
                RankSample(rank=rank, step=state.step, age_s=None if state.age_s is None else round(state.age_s, 1))
                for rank, state in sorted(self._progress().items())
            ),
        )

    def _sample_on(self) -> None:
        self._before = (-1, read_usage((), at=time.monotonic()))
        while not self._is_over.wait(self._every_s):
            sample = self.take(at=time.monotonic(), time_ns=time.time_ns())
            if not self._is_over.is_set():
                self._disk.best_effort(lambda: self._file.append(sample), most_queued=MOST_QUEUED)  # noqa: B023
