"""Holds the copies of other nodes' training states that are on this node, in memory; a ledger says which count."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hpc_elastic.agent.keeper.transfer import NotNowError, Offer, RankSource, TransferError
from hpc_elastic.membership.copy_ledger import VERSIONS, CopyLedger, Version
from hpc_elastic.state_memory import (
    ALLOCATED,
    GROWS_BY,
    create_memory,
    map_control,
    read_slots,
    reserve_slot,
    slot_header,
)


@dataclass(slots=True, kw_only=True)
class _Memories:
    """The memories for one part, of each of its ranks: a slot of them is a place of the ledger."""

    descriptors: list[int]
    bytes_reserved: int = 0


class Copies:
    """The copies on this node; any thread may ask.

    Args:
        find_room: returns how many bytes more copies may take that take so many already.
        opened: is called with a part and the descriptors of new memories for it; must not block.
        freed: is called with a part whose memories are freed; must not block.
    """

    def __init__(
        self,
        find_room: Callable[[int], int],
        *,
        opened: Callable[[str, Sequence[int]], None] = lambda *_: None,
        freed: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._find_room = find_room
        self._opened = opened
        self._freed = freed
        self._lock = threading.Lock()
        self._ledger = CopyLedger()
        self._memories: dict[str, _Memories] = {}

    def begin(self, attempt: int, version: Version | None) -> None:
        """Forget all but the state with which an attempt begins."""
        with self._lock:
            self._ledger.begin(attempt, version)
            self._free()

    def restore(self, part: str, descriptors: list[int]) -> None:
        """Take over the memories for a part, with what is complete in them; own the descriptors from now on.

        Where there is a copy of that part, they are of no use any more.
        """
        with self._lock:
            memories = _Memories(descriptors=descriptors)
            if part in self._memories:
                _close(memories)
                return
            numbers = [map_control(each) for each in descriptors]
            found = [{state.slot: state.version for state in read_slots(each)} for each in numbers]
            versions = [{each.get(slot) for each in found} for slot in range(VERSIONS)]
            memories.bytes_reserved = sum(VERSIONS * max(_allocated(each)) for each in numbers)
            self._memories[part] = memories
            self._ledger.restore(part, [each.pop() if len(each) == 1 else None for each in versions])
            self._free()

    def held(self) -> list[tuple[str, Version]]:
        """Return what is here, complete: the parts, and which versions of their states."""
        with self._lock:
            return list(self._ledger.held())

    def find(self, part: str, version: Version) -> list[RankSource] | None:
        """Return the states of a part's ranks, None if they are not here; the caller closes the descriptors."""
        with self._lock:
            slot = self._ledger.find(part, version)
            return None if slot is None else _sources(self._memories[part].descriptors, slot)

    def has(self, offer: Offer) -> bool:
        """Return whether the states of an offer are here."""
        with self._lock:
            return self._ledger.find(offer.part, offer.version) is not None

    @contextlib.contextmanager
    def take(self, offer: Offer) -> Iterator[tuple[list[int], int]]:
        """Take the states of an offer, which count when the body ends without an error.

        Yields:
            The memories to receive them into, and the slot.

        Raises:
            TransferError: they are not taken; the message says why.
        """
        with self._lock:
            memories = self._prepare(offer)
            slot = self._ledger.start(offer.part)
        received = None
        try:
            try:
                # Both places at once: the room was looked up for both, and may be taken when the second one is needed.
                for length, descriptor in zip(offer.lengths, memories.descriptors, strict=True):
                    numbers = map_control(descriptor)
                    for each in range(VERSIONS):
                        reserve_slot(numbers, descriptor, each, _whole(length))
            except OSError as error:
                raise TransferError(f"there is no memory for it: {error.strerror}") from error
            yield memories.descriptors, slot
            received = offer.version
        finally:
            with self._lock:
                self._ledger.finish(offer.part, slot, received)
                self._free()

    def close(self) -> None:
        """Free all memory."""
        with self._lock:
            for part in list(self._memories):
                _close(self._memories.pop(part))

    def _prepare(self, offer: Offer) -> _Memories:
        """Return the memories for an offer.

        Raises:
            TransferError: it is not taken.
        """
        if not self._ledger.is_wanted(offer.version):
            at_work = f"attempt {self._ledger.attempt} is at work here"
            raise NotNowError(f"it is of attempt {offer.attempt}, and {at_work}")
        if self._ledger.is_being_filled(offer.part):
            raise NotNowError("another copy of it is under way")
        memories = self._memories.get(offer.part)
        needed = VERSIONS * sum(map(_whole, offer.lengths))
        more = needed - (0 if memories is None else memories.bytes_reserved)
        room = self._find_room(sum(each.bytes_reserved for each in self._memories.values()))
        if more > max(0, room):
            raise TransferError(f"copies of {offer.part} need {more} bytes more, and there is room for {max(0, room)}")
        if memories is None:
            memories = self._memories[offer.part] = _Memories(descriptors=_create(len(offer.lengths)))
            self._opened(offer.part, memories.descriptors)
        memories.bytes_reserved = max(memories.bytes_reserved, needed)
        return memories

    def _free(self) -> None:
        """Free the memories of parts of which there is no copy."""
        for part in [part for part in self._memories if not self._ledger.has(part)]:
            _close(self._memories.pop(part))
            self._freed(part)


def _whole(length: int) -> int:
    return -(-length // GROWS_BY) * GROWS_BY


def _allocated(numbers: memoryview) -> list[int]:
    return [int(slot_header(numbers, slot)[ALLOCATED]) for slot in range(VERSIONS)]


def _create(count: int) -> list[int]:
    """Create memories.

    Raises:
        TransferError: there can be none.
    """
    memories: list[int] = []
    try:
        memories.extend(create_memory(number) for number in range(count))
    except OSError as error:
        for descriptor in memories:
            os.close(descriptor)
        raise TransferError(f"there can be no memory for it: {error.strerror}") from error
    return memories


def _sources(memories: list[int], slot: int) -> list[RankSource] | None:
    found = []
    for descriptor in memories:
        numbers = map_control(descriptor)
        state = next((each for each in read_slots(numbers) if each.slot == slot), None)
        if state is None:
            return None
        found.append(RankSource(descriptor=descriptor, numbers=numbers, state=state))
    return [RankSource(descriptor=os.dup(each.descriptor), numbers=each.numbers, state=each.state) for each in found]


def close_sources(sources: list[RankSource]) -> None:
    """Close the descriptors of states that `find` has returned."""
    for source in sources:
        os.close(source.descriptor)


def _close(memories: _Memories) -> None:
    for descriptor in memories.descriptors:
        os.close(descriptor)
    memories.descriptors.clear()
