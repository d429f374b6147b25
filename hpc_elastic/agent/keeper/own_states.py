"""Reads the training states of this node's own ranks where they save them, and says which of them are copied."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from hpc_elastic.agent.keeper.transfer import RankSource
from hpc_elastic.state_memory import (
    ALLOCATED,
    COPY_EVERY,
    NO_COPIES,
    SLOTS,
    SlotState,
    is_copied,
    map_control,
    read_slots,
    slot_header,
)

MOST_EVERY = 1 << 30


@dataclass(slots=True, kw_only=True)
class OwnStates:
    """The memories of the local ranks in one attempt.

    Args:
        part: this node's part of the world.
        shared: whose a state is that is the same on all ranks of its role.
        memories: the descriptors of the memories by local rank, which this object owns.
        attempt: the attempt. Its workers may save before the keeper is told of the next one, and the memories stay
            the same: what a later attempt has saved there may belong to another part.
    """

    attempt: int
    part: str
    shared: str
    memories: Sequence[int]
    _numbers: list[memoryview] = field(init=False)

    def __post_init__(self) -> None:
        self._numbers = [map_control(each) for each in self.memories]

    @property
    def every(self) -> int:
        """Each how manieth save is copied."""
        return max((int(numbers[COPY_EVERY]) for numbers in self._numbers), default=0)

    def raise_every(self, every: int) -> None:
        """Have fewer saves copied: each `every`-th; it is never made less in an attempt."""
        for numbers in self._numbers:
            numbers[COPY_EVERY] = max(numbers[COPY_EVERY], min(every, MOST_EVERY))

    @property
    def has_room(self) -> bool:
        """Whether no rank has said that it has no room for states that are copied."""
        return not any(numbers[NO_COPIES] for numbers in self._numbers)

    @property
    def reserved(self) -> int:
        """The bytes that the ranks' states take."""
        return sum(slot_header(numbers, slot)[ALLOCATED] for numbers in self._numbers for slot in range(SLOTS))

    def newest_copied(self) -> list[RankSource] | None:
        """Return the newest states that all local ranks have, of those that are copied; None if there are none."""
        every = self.every
        found = []
        for numbers in self._numbers:
            states = (state for state in self._states_in(numbers) if not state.is_replicated)
            found.append({state.version: state for state in states if is_copied(state.ordinal, every)})
        version = max(set.intersection(*map(set, found)), default=None) if found else None
        if version is None:
            return None
        whose = zip(self.memories, self._numbers, found, strict=True)
        return [RankSource(descriptor=each, numbers=numbers, state=states[version]) for each, numbers, states in whose]

    def find(self, part: str, version: tuple[int, int]) -> list[RankSource] | None:
        """Return the states of a part's ranks, or one that is the same on all; the caller closes the descriptors."""
        if part not in (self.part, self.shared) or not self.memories:
            return None
        is_shared = part == self.shared
        found = []
        for descriptor, numbers in zip(self.memories, self._numbers, strict=True):
            states = (each for each in self._states_in(numbers) if each.version == version)
            state = next((each for each in states if each.is_replicated == is_shared), None)
            if state is None:
                return None
            found.append(RankSource(descriptor=descriptor, numbers=numbers, state=state))
            if is_shared:
                break
        return [
            RankSource(descriptor=os.dup(each.descriptor), numbers=each.numbers, state=each.state) for each in found
        ]

    def copy(self) -> OwnStates:
        """Return the same states with descriptors of their own."""
        memories = [os.dup(each) for each in self.memories]
        return OwnStates(attempt=self.attempt, part=self.part, shared=self.shared, memories=memories)

    def close(self) -> None:
        """Close the descriptors."""
        for descriptor in self.memories:
            os.close(descriptor)
        self.memories, self._numbers = (), []

    def _states_in(self, numbers: memoryview) -> list[SlotState]:
        return [state for state in read_slots(numbers) if state.attempt <= self.attempt]
