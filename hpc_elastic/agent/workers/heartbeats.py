"""Makes the memory into which this node's workers write their heartbeats, reads it, and writes notices into it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from hpc_elastic.failures.stall import HeartbeatState
from hpc_elastic.heartbeat_memory import (
    BEATS_FROM,
    COUNT,
    FIRST_NS,
    FIRST_STEP,
    NO_STEP,
    NOTICE_SIGNAL,
    PID,
    POLLS,
    POLLS_FROM,
    REASON,
    REASONS,
    SAVING,
    SIGNAL,
    SLOT_NUMBERS,
    STEP,
    STOPS_NS,
    TIME_NS,
    WAIT,
    create_memory,
    create_stack_file,
    map_memory,
)
from hpc_elastic.membership.notices import NoticeCounts, NoticeGiven


@dataclass(frozen=True, slots=True, kw_only=True)
class _Notice:
    """The notice that the workers of an attempt have: from which poll and heartbeat on, why, and when they stop."""

    attempt: int
    polls_from: int = WAIT
    beats_from: int = WAIT
    reason: int
    stops_ns: int


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
        notice_signal: the signal that workers get at a notice, 0 for none: what they fork is to ignore it.
    """

    def __init__(self, now_ns: Callable[[], int] = time.monotonic_ns, *, notice_signal: int = 0) -> None:
        self._now_ns = now_ns
        self._notice_signal = notice_signal
        self._ranks: tuple[int, ...] = ()
        self._numbers: memoryview | None = None
        self._files: list[HeartbeatFiles] = []
        self._attempt = 0
        self._notice: _Notice | None = None

    def begin(self, ranks: Sequence[int], attempt: int = 0) -> list[HeartbeatFiles]:
        """Make the memory of an attempt; the descriptors are for the workers, and valid until the next attempt.

        Args:
            ranks: the global ranks of this node's workers, by local rank.
            attempt: the attempt, for which a notice may have come already.
        """
        self.close()
        self._attempt = attempt
        memory = create_memory(len(ranks))
        self._files = [HeartbeatFiles(memory=memory, stack=create_stack_file()) for _ in ranks]
        self._numbers = map_memory(memory)
        self._ranks = tuple(ranks)
        for _, slot in self._slots():
            slot[NOTICE_SIGNAL] = self._notice_signal
        self._write_notice()
        return list(self._files)

    def read(self) -> Mapping[int, HeartbeatState]:
        """Return the heartbeats of this node's workers in the latest attempt, by global rank."""
        now_ns = self._now_ns()
        return {rank: self._read(slot, now_ns) for rank, slot in self._slots()}

    def furthest_step(self) -> int | None:
        """Return the furthest step that a worker of the latest attempt named, None if none named one."""
        return max((state.step for state in self.read().values() if state.step is not None), default=None)

    def stack_sources(self) -> Mapping[int, StackSource]:
        """Return how the stacks of this node's workers are asked for, by global rank."""
        return {
            rank: StackSource(pid=slot[PID], signal=slot[SIGNAL], stack=files.stack)
            for (rank, slot), files in zip(self._slots(), self._files, strict=True)
        }

    def saving(self) -> frozenset[int]:
        """Return the global ranks that are in a block of `saving`, or were when they ended."""
        return frozenset(rank for rank, slot in self._slots() if slot[SAVING] > 0)

    @property
    def has_notice(self) -> bool:
        """Return whether a notice is given to the workers of the latest attempt."""
        return self._notice is not None and self._notice.attempt == self._attempt

    def hold_for_notice(self, attempt: int, notice: NoticeGiven) -> None:
        """Have the calls of an attempt's workers wait that ask for a notice; if it has one, change what that says.

        The workers of the attempt may not have been started yet.
        """
        old = self._notice if self._notice is not None and self._notice.attempt == attempt else None
        reason, left_s = REASONS.index(notice.reason), notice.seconds_left
        stops_ns = 0 if left_s is None else self._now_ns() + max(1, int(left_s * 1e9))
        new = _Notice(attempt=attempt, reason=reason, stops_ns=stops_ns)
        self._notice = new if old is None else replace(old, reason=reason, stops_ns=stops_ns)
        self._write_notice()

    def count_polls(self, attempt: int) -> NoticeCounts:
        """Return the largest numbers of calls and of heartbeats of an attempt's workers; 0 before they are started."""
        slots = self._slots() if attempt == self._attempt else []
        polls = max((slot[POLLS] for _, slot in slots), default=0)
        return NoticeCounts(polls=polls, beats=max((slot[COUNT] for _, slot in slots), default=0))

    def name_notice(self, attempt: int, first: NoticeCounts) -> None:
        """Let the waiting calls go on, if any wait: those with these numbers and above hear of the notice."""
        if self._notice is not None and self._notice.attempt == attempt and self._notice.polls_from == WAIT:
            self._notice = replace(self._notice, polls_from=first.polls, beats_from=first.beats)
            self._write_notice()

    def _write_notice(self) -> None:
        """Write the notice into all slots: what it says first, because a call that sees a number reads it then."""
        notice = self._notice
        if notice is None or notice.attempt != self._attempt:
            return
        for _, slot in self._slots():
            slot[REASON], slot[STOPS_NS] = notice.reason, notice.stops_ns
            slot[BEATS_FROM], slot[POLLS_FROM] = notice.beats_from, notice.polls_from

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
        named = None if step == NO_STEP else step
        first_step, first_ns = slot[FIRST_STEP], slot[FIRST_NS]
        return HeartbeatState(
            step=named,
            age_s=age_s,
            count=count,
            is_saving=slot[SAVING] > 0,
            first_step=first_step if first_ns else None,
            first_age_s=max(0, now_ns - first_ns) / 1e9 if first_ns else None,
        )
