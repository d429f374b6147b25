"""Keeps the memory in which this node's ranks save their training states, from attempt to attempt, and checks it."""

from __future__ import annotations

import mmap
import os
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from hpc_elastic.cgroup_memory import read_room
from hpc_elastic.membership.held_states import part_of
from hpc_elastic.membership.messages import Assign
from hpc_elastic.rundir.state_records import HeldState, StateVersion
from hpc_elastic.state_memory import (
    ATTEMPT,
    LIMIT,
    LOAD_FROM,
    LOAD_SLOT,
    NODE,
    NOTHING,
    OWN,
    PERCENT,
    PID,
    SEQUENCE,
    SLOTS,
    TOTAL,
    SlotState,
    create_memory,
    map_control,
    read_slots,
    slot_header,
    slot_offset,
)

SHARE = 40  # percent of the node's memory that the states of all its ranks may take


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFiles:
    """The descriptors that a worker inherits: of its own memory, and of that of the node's local rank 0."""

    own: int
    node: int


class StateNotHereError(Exception):
    """The state that an attempt is to go on with is not on this node."""


class RankStates:
    """The memories of this node's local ranks.

    Args:
        say: takes a line for the agent's log; may be called in any thread.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._files: list[int] = []  # by local rank
        self._numbers: list[memoryview] = []
        self._part = ""
        self._first_rank = 0
        self._memory = 0  # bytes that may be used on this node, read once because it takes longer than all the rest

    def begin(self, assign: Assign) -> list[StateFiles]:
        """Prepare the memories for an attempt, and return what each worker inherits.

        Every state but the one that the attempt goes on with is forgotten: what is saved from now on is another
        history, of which no step may be mixed with one of before.

        Raises:
            StateNotHereError: this node does not hold that state.
        """
        self._part, self._first_rank = part_of(assign), assign.first_rank
        while len(self._files) > assign.workers:
            os.close(self._files.pop())
            self._numbers.pop()
        while len(self._files) < assign.workers:
            self._files.append(create_memory(len(self._files)))
            self._numbers.append(map_control(self._files[-1]))
        if not self._memory:
            self._memory = read_room().total
        for numbers in self._numbers:
            numbers[PID], numbers[ATTEMPT], numbers[LOAD_FROM] = 0, assign.attempt, NOTHING
            numbers[TOTAL], numbers[PERCENT] = self._memory, SHARE
            numbers[LIMIT] = self._memory * SHARE // 100 // assign.workers
        self._choose(assign.state)
        return [StateFiles(own=own, node=self._files[0]) for own in self._files]

    def _choose(self, version: StateVersion | None) -> None:
        wanted = None if version is None else (version.attempt, version.step)
        found = [_forget_others(numbers, wanted) for numbers in self._numbers]
        if version is None:
            return
        first = found[0] if found else None
        if first is not None and first.is_replicated:
            for local_rank, numbers in enumerate(self._numbers):
                numbers[LOAD_SLOT] = first.slot
                numbers[LOAD_FROM] = NODE if local_rank else OWN
            return
        if any(state is None for state in found):
            raise StateNotHereError(f"the state of step {version.step} that the attempt goes on with is not here")
        for numbers, state in zip(self._numbers, found, strict=True):
            if state is not None:
                numbers[LOAD_SLOT], numbers[LOAD_FROM] = state.slot, OWN

    @property
    def has_some(self) -> bool:
        """Whether there is a state that all local ranks hold, damaged or not."""
        return bool(self._held())

    def verify(self) -> tuple[HeldState, ...]:
        """Return the states that all local ranks hold complete and undamaged; forget those that are damaged.

        No worker may run. It reads every such state once, one thread a rank, and takes 0.35 s a GB.
        """
        if not self.has_some:
            return ()
        with ThreadPoolExecutor(max_workers=min(len(self._files), os.cpu_count() or 1)) as threads:
            list(threads.map(self._verify_rank, range(len(self._files))))
        return self._held()

    def _held(self) -> tuple[HeldState, ...]:
        found = [{state.version: state for state in read_slots(numbers)} for numbers in self._numbers]
        held = []
        for version, state in (found[0] if found else {}).items():
            is_whole = all(version in each and not each[version].is_replicated for each in found)
            if state.is_replicated or is_whole:
                part = None if state.is_replicated else self._part
                held.append(HeldState(attempt=version[0], step=version[1], part=part))
        return tuple(held)

    def _verify_rank(self, local_rank: int) -> None:
        descriptor, numbers = self._files[local_rank], self._numbers[local_rank]
        for state in read_slots(numbers):
            if state.crc is None:  # its rank was killed within moments of the copy
                continue
            if _checksum(descriptor, state) != state.crc:
                slot_header(numbers, state.slot)[SEQUENCE] = 0
                rank = self._first_rank + local_rank
                self._say(f"rank {rank}: its state of step {state.step} in memory is damaged, and is not used")

    def close(self) -> None:
        """Close the descriptors, which frees the memory when no worker has it any more."""
        for descriptor in self._files:
            os.close(descriptor)
        self._files, self._numbers = [], []


def _forget_others(numbers: memoryview, wanted: tuple[int, int] | None) -> SlotState | None:
    """Clear all slots but that of the wanted state, and return that state, None if it is not there."""
    kept = next((state for state in read_slots(numbers) if state.version == wanted), None)
    for slot in range(SLOTS):
        if kept is None or slot != kept.slot:
            slot_header(numbers, slot)[SEQUENCE] = 0
    return kept


def _checksum(descriptor: int, state: SlotState) -> int:
    with mmap.mmap(descriptor, state.length, prot=mmap.PROT_READ, offset=slot_offset(state.slot)) as memory:
        return zlib.crc32(memory)
