"""Makes the memory into which this node's workers write their heartbeats, and reads it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hpc_elastic.failures.stall import HeartbeatState
from hpc_elastic.heartbeat_memory import (
    COUNT,
    NO_STEP,
    PID,
    SIGNAL,
    SLOT_NUMBERS,
    STEP,
    TIME_NS,
    create_memory,
    create_stack_file,
    map_memory,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatFiles:
    """The descriptors that a worker inherits: of the node's heartbeat memory, and of the file for its own stacks."""

    memory: int
    stack: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSource:
    """How a worker's stacks are asked for: the process that beats, its signal (0: it has no handler), and its file."""

    pid: int
    signal: int
    stack: int


class Heartbeats:
    """The heartbeats of this node's workers, attempt after attempt; `read` may be called at any time.

    Each attempt has a memory of its own, so that a process which survived KILL cannot beat for its successor.

    Args:
        now_ns: CLOCK_MONOTONIC in nanoseconds. It stands still while the machine is suspended.
    """

    def __init__(self, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._now_ns = now_ns
        self._ranks: tuple[int, ...] = ()
        self._numbers: memoryview | None = None
        self._files: list[HeartbeatFiles] = []

    def begin(self, ranks: Sequence[int]) -> list[HeartbeatFiles]:
        """Make the memory of an attempt; the descriptors are for the workers, and valid until the next attempt.

        Args:
            ranks: the global ranks of this node's workers, by local rank.
        """
        self.close()
        memory = create_memory(len(ranks))
        self._files = [HeartbeatFiles(memory=memory, stack=create_stack_file()) for _ in ranks]
        self._numbers = map_memory(memory)
        self._ranks = tuple(ranks)
        return list(self._files)

    def read(self) -> Mapping[int, HeartbeatState]:
        """Return the heartbeats of this node's workers in the latest attempt, by global rank."""
        now_ns = self._now_ns()
        return {rank: self._read(slot, now_ns) for rank, slot in self._slots()}

    def stack_sources(self) -> Mapping[int, StackSource]:
        """Return how the stacks of this node's workers are asked for, by global rank."""
        return {
            rank: StackSource(pid=slot[PID], signal=slot[SIGNAL], stack=files.stack)
            for (rank, slot), files in zip(self._slots(), self._files, strict=True)
        }

    def close(self) -> None:
        """Forget the workers and close the descriptors; workers that still run keep their memory."""
        for descriptor in {number for files in self._files for number in (files.memory, files.stack)}:
            os.close(descriptor)
        self._files, self._ranks, self._numbers = [], (), None

    def _slots(self) -> list[tuple[int, memoryview]]:
        if self._numbers is None:
            return []
        starts = range(0, len(self._ranks) * SLOT_NUMBERS, SLOT_NUMBERS)
        return [(rank, self._numbers[at : at + SLOT_NUMBERS]) for rank, at in zip(self._ranks, starts, strict=True)]

    @staticmethod
    def _read(slot: memoryview, now_ns: int) -> HeartbeatState:
        count, step, time_ns = slot[COUNT], slot[STEP], slot[TIME_NS]
        age_s = max(0, now_ns - time_ns) / 1e9 if time_ns else None
        return HeartbeatState(step=None if step == NO_STEP else step, age_s=age_s, count=count)
