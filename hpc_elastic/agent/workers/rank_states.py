"""Keeps the memory in which this node's ranks save their training states, from attempt to attempt, and checks it."""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from hpc_elastic.agent.keeper.channel import Dial
from hpc_elastic.agent.keeper.fetch import BreakOff, fetch_states
from hpc_elastic.agent.keeper.transfer import TransferError
from hpc_elastic.agent.workers.state_files import StateFileError, StatePart, read_states
from hpc_elastic.agent.workers.state_room import StateRoom
from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.membership.held_states import part_of, rank_places, ranks_of, shared_place
from hpc_elastic.membership.messages import Assign
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.records import Endpoint
from hpc_elastic.rundir.state_records import OF_ANOTHER_RUN, Flush, HeldState, StateVersion
from hpc_elastic.state_memory import (
    ALLOCATED,
    ATTEMPT,
    COPY_EVERY,
    IS_CLOSED,
    LIMIT,
    LOAD_FROM,
    LOAD_SLOT,
    LOCAL_RANK,
    NODE,
    NOTHING,
    ORDINAL,
    OWN,
    PERCENT,
    PID,
    SEQUENCE,
    SLOTS,
    TOTAL,
    SlotState,
    bytes_taken,
    create_memory,
    free_unused,
    map_control,
    pin_states,
    read_slots,
    slot_header,
    slot_offset,
)

READ_BYTES = 1024 * 1024
PIN_TRIES = 3


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
        other_run: the run directory of the run whose states may be loaded, too.
        dial: connects to a keeper; None: states are not copied between nodes.
        keeper: where this node's own keeper listens.
        room: how much memory states may take.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        *,
        other_run: str | None = None,
        dial: Dial | None = None,
        keeper: Endpoint | None = None,
        room: StateRoom | None = None,
    ) -> None:
        self._say = say
        self._room = StateRoom(say) if room is None else room
        self._other_run = other_run
        self._dial = dial
        self._keeper = keeper
        self._unchecked: set[tuple[int, int]] = set()  # versions whose checksums are not compared yet
        self._files: list[int] = []  # by local rank
        self._numbers: list[memoryview] = []
        self._part = ""  # whose the states are, of each rank's own ...
        self._shared = ""  # ... and of one that is the same on all ranks
        self._assign: Assign | None = None  # of the latest attempt
        self._first_rank = 0
        self._has_complained = False

    def lacks(self, assign: Assign) -> StateVersion | None:
        """Return the state that an attempt goes on with if it is not in memory here, and has to be fetched."""
        if assign.state is None:
            return None
        found = self._of_version(assign.state)
        # Other ranks may have been here, of another role even: what is in memory fits those that have saved it.
        is_shared = bool(found and found[0] is not None and found[0].is_replicated)
        is_here = (
            shared_place(assign.role) == self._shared
            if is_shared
            else len(found) == assign.workers and None not in found and part_of(assign) == self._part
        )
        is_checked = (assign.state.attempt, assign.state.step) not in self._unchecked
        return None if is_here and is_checked else assign.state

    def fetch(self, assign: Assign, layout: RunLayout, breaking: BreakOff | None = None) -> list[int] | None:
        """Get the state that an attempt goes on with from another node or from the run directory.

        Args:
            assign: the attempt.
            layout: the run directory.
            breaking: breaks it off.

        Returns:
            New memories, by local rank; None if it is in memory here, and only its checksums were to be compared.

        Raises:
            StateNotHereError: it is not there either, is damaged, or does not fit.
        """
        if assign.state is None:
            return []
        if (version := (assign.state.attempt, assign.state.step)) in self._unchecked:
            self._check(version)
            if self.lacks(assign) is None:
                return None
        problem = ""
        if self._dial is not None and assign.state_from:
            parts = (part_of(assign), shared_place(assign.role))
            try:
                return fetch_states(
                    self._dial, assign.state_from, parts, assign.state, assign.workers, self._room.most, breaking
                )
            except TransferError as error:
                problem = f"no other node has given it ({error}), and "
        if breaking is not None and breaking.is_asked:
            raise StateNotHereError(f"step {assign.state.step} is not loaded: the attempt is stopped")
        try:
            if assign.state.attempt == OF_ANOTHER_RUN and self._other_run is not None:
                # An earlier allocation may have written it anew, and the other run's directory may be gone since.
                with contextlib.suppress(StateFileError, RunDirectoryError):
                    return read_states(layout, assign, assign.state, self._room.most)
                return read_states(layout, assign, assign.state, self._room.most, other=RunLayout(self._other_run))
            return read_states(layout, assign, assign.state, self._room.most)
        except (StateFileError, RunDirectoryError) as error:
            raise StateNotHereError(f"step {assign.state.step} cannot be loaded: {problem}{error}") from error

    def adopt(self, files: list[int], assign: Assign) -> None:
        """Take these memories, which `fetch` has filled for this attempt, in the place of those that there are."""
        self.close()
        self._unchecked.clear()
        self._part, self._shared = part_of(assign), shared_place(assign.role)
        self._files = files
        self._numbers = [map_control(file) for file in files]

    def parts_of(self, flush: Flush, layout: RunLayout) -> list[StatePart]:
        """Return what this node has to write of a state; [] if it has no part of it."""
        assign, found = self._assign, self._of_version(flush.state)
        if assign is None or not found or (flush.copies and not any(found)):
            return []
        if found[0] is not None and found[0].is_replicated:
            whose = [(layout.kept_of_all(assign.role), shared_place(assign.role))]
        else:
            ranks = range(assign.first_rank, assign.first_rank + assign.workers)
            whose = list(zip(map(layout.kept_of_rank, ranks), rank_places(assign), strict=True))
        return [
            StatePart(
                name=name,
                place=place,
                descriptor=self._files[local_rank],
                state=found[local_rank],
                numbers=self._numbers[local_rank],
            )
            for local_rank, (name, place) in enumerate(whose)
        ]

    def copies_of(self, flush: Flush, layout: RunLayout) -> list[StatePart]:
        """Return what this node has to write of the states of lost nodes, out of their copies here.

        What cannot be had is left out with a line: the state is not whole then, and does not count.
        """
        found: list[StatePart] = []
        if self._dial is None or self._keeper is None:
            return found
        for part in flush.copies:
            ranks = ranks_of(part)
            try:
                memories = fetch_states(self._dial, [self._keeper], [part], flush.state, len(ranks), self._room.most)
            except TransferError as error:
                self._say(f"the copy of step {flush.state.step} of a lost node cannot be written: {error}")
                continue
            for (rank, place), memory in zip(ranks, memories, strict=True):
                (state,) = read_slots(map_control(memory))
                name = layout.kept_of_rank(rank)
                found.append(StatePart(name=name, place=place, descriptor=memory, state=state))
        return found

    def begin(self, assign: Assign) -> list[StateFiles]:
        """Prepare the memories for an attempt, and return what each worker inherits; [] if there can be no memory.

        Every state but the one that the attempt goes on with is forgotten: what is saved from now on is another
        history, of which no step may be mixed with one of before.

        Raises:
            StateNotHereError: this node does not hold that state.
        """
        is_of_role = self._shared in ("", shared_place(assign.role))
        self._part, self._shared = part_of(assign), shared_place(assign.role)
        self._first_rank, self._assign = assign.first_rank, assign
        try:
            self._have(assign.workers)
        except (OSError, ValueError) as error:
            self.close()
            if not self._has_complained:
                self._has_complained = True
                self._say(f"no training state can be kept in memory here ({error})")
            if assign.state is not None:
                raise _not_here(assign.state) from error
            return []
        self._room.look(sum(map(bytes_taken, self._files)))
        for local_rank, numbers in enumerate(self._numbers):
            numbers[PID], numbers[ATTEMPT], numbers[LOAD_FROM] = 0, assign.attempt, NOTHING
            pin_states(numbers, None)
            numbers[LOCAL_RANK] = local_rank
            numbers[TOTAL], numbers[PERCENT] = self._room.total, self._room.percent
            numbers[LIMIT], numbers[IS_CLOSED] = self._room.most // assign.workers, not self._room.is_open
            every = numbers[COPY_EVERY] if self._dial is not None and assign.copies_to is not None else 0
            numbers[COPY_EVERY] = 0 if self._dial is None or assign.copies_to is None else max(1, every // 2)
        self._choose(assign.state, is_of_role=is_of_role)
        if not self._room.is_open:
            for own, numbers in zip(self._files, self._numbers, strict=True):
                free_unused(numbers, own)
        return [StateFiles(own=own, node=self._files[0]) for own in self._files]

    @property
    def takes_copies(self) -> bool:
        """Whether copies of other nodes' states may be kept on this node."""
        return self._room.is_open

    @property
    def descriptors(self) -> list[int]:
        """The descriptors of the memories, by local rank; they stay this object's."""
        return list(self._files)

    def _have(self, workers: int) -> None:
        """Have as many memories as there are workers.

        Raises:
            OSError, ValueError: a memory cannot be made.
        """
        while len(self._files) > workers:
            os.close(self._files.pop())
            self._numbers.pop()
        while len(self._files) < workers:
            self._files.append(create_memory(len(self._files)))
            self._numbers.append(map_control(self._files[-1]))

    def _choose(self, version: StateVersion | None, *, is_of_role: bool) -> None:
        wanted = None if version is None or not is_of_role else (version.attempt, version.step)
        found = [self._forget_others(local_rank, wanted) for local_rank in range(len(self._files))]
        if version is None:
            return
        first = found[0] if found else None
        if first is not None and first.is_replicated:
            for local_rank, numbers in enumerate(self._numbers):
                numbers[LOAD_SLOT] = first.slot
                numbers[LOAD_FROM] = NODE if local_rank else OWN
            return
        if any(state is None for state in found):
            raise _not_here(version)
        for numbers, state in zip(self._numbers, found, strict=True):
            if state is not None:
                numbers[LOAD_SLOT], numbers[LOAD_FROM] = state.slot, OWN

    @property
    def has_some(self) -> bool:
        """Whether a local rank holds a state, damaged or not."""
        return any(self._states(local_rank) for local_rank in range(len(self._files)))

    def hold(self) -> tuple[HeldState, ...]:
        """Return the states that all local ranks hold complete, without a look at more than their headers."""
        return self._held()

    def pin(self, first: StateVersion | None) -> tuple[HeldState, ...]:
        """Have the ranks keep one state, while they go on to save, the oldest from `first` on that all of them hold.

        Args:
            first: the version; it may be one that is still to be saved. None: the newest but one of those that are
                there, which no rank of another node is ahead of.

        Returns:
            The states that all local ranks hold from that one on, the oldest first; () if there is none yet.
        """
        if first is None:
            versions = sorted(state.version for state in self._held())
            if not versions:
                return ()
            first = versions[-2:][0]
        for _ in range(PIN_TRIES):
            for numbers in self._numbers:
                pin_states(numbers, (first.attempt, first.step))
            held = sorted((each for each in self._held() if each.version >= first), key=lambda each: each.version)
            if not held or held[0].version == first:
                return tuple(held)
            first = held[0].version  # perhaps a rank keeps an older one, which another has overwritten
        return ()

    def make_pin_firm(self, version: StateVersion) -> None:
        """Have the ranks keep this state, which all hold, and not their newest one if there is no room for both."""
        for numbers in self._numbers:
            pin_states(numbers, (version.attempt, version.step), is_firm=True)

    def unpin(self) -> None:
        """Let the ranks overwrite any state again but the newest."""
        for numbers in self._numbers:
            pin_states(numbers, None)

    def verify(self) -> tuple[HeldState, ...]:
        """Return the states that all local ranks hold complete, the newest of them undamaged; forget damaged ones.

        Where they have none in common, the newest that a rank holds is returned as a partial one.

        No worker may run. It reads that state once, one thread a rank, and takes 0.35 s a GB. It is nearly always the
        one that is chosen: an older one is read when that is, or when the newest is damaged.
        """
        was_open = self._room.is_open
        if self._room.look(sum(map(bytes_taken, self._files))) and not was_open:
            for local_rank, (own, numbers) in enumerate(zip(self._files, self._numbers, strict=True)):
                self._forget_others(local_rank, None)  # what was loaded is in the way still
                free_unused(numbers, own)
        if not self.has_some:
            return ()
        versions = sorted(((state.attempt, state.step) for state in self._held()), reverse=True)
        self._unchecked = set(versions)
        for version in versions:
            if self._check(version):
                break
        if not (held := self._held()):
            self._say("there is no step in memory that all ranks of this node hold")
        return held or self._partial()

    def _check(self, version: tuple[int, int]) -> bool:
        """Compare the checksums of the states of a version; return whether all local ranks hold it undamaged."""
        self._unchecked.discard(version)
        self._verify(lambda state: state.version == version)
        return any((state.attempt, state.step) == version for state in self._held())

    def _verify(self, is_meant: Callable[[SlotState], bool]) -> None:
        with ThreadPoolExecutor(max_workers=min(len(self._files), os.cpu_count() or 1)) as threads:
            list(threads.map(lambda local_rank: self._verify_rank(local_rank, is_meant), range(len(self._files))))

    def _states(self, local_rank: int) -> list[SlotState]:
        """Return what a rank says that it holds, unless it is more than its file has, or than it may have."""
        numbers, size = self._numbers[local_rank], os.fstat(self._files[local_rank]).st_size
        return [
            state
            for state in read_slots(numbers)
            if state.length <= self._room.most and _allocated(numbers, state.slot) <= size - slot_offset(state.slot)
        ]

    def _of_version(self, version: StateVersion) -> list[SlotState | None]:
        """Return each local rank's state of this version, None where there is none."""
        wanted = version.attempt, version.step
        ranks = range(len(self._files))
        return [next((state for state in self._states(rank) if state.version == wanted), None) for rank in ranks]

    def _forget_others(self, local_rank: int, wanted: tuple[int, int] | None) -> SlotState | None:
        """Clear all slots but that of the wanted state, and return that state, None if it is not there."""
        numbers, size = self._numbers[local_rank], os.fstat(self._files[local_rank]).st_size
        kept = next((state for state in self._states(local_rank) if state.version == wanted), None)
        for slot in range(SLOTS):
            if kept is None or slot != kept.slot:
                slot_header(numbers, slot)[SEQUENCE] = 0
            else:
                slot_header(numbers, slot)[ORDINAL] = 0
            if not 0 <= _allocated(numbers, slot) <= max(0, size - slot_offset(slot)):
                slot_header(numbers, slot)[ALLOCATED] = 0
        return kept

    def _held(self) -> tuple[HeldState, ...]:
        found = [{state.version: state for state in self._states(rank)} for rank in range(len(self._files))]
        held = []
        for version, state in (found[0] if found else {}).items():
            is_whole = all(version in each and not each[version].is_replicated for each in found)
            if state.is_replicated or is_whole:
                part = self._shared if state.is_replicated else self._part
                held.append(HeldState(attempt=version[0], step=version[1], part=part))
        return tuple(held)

    def _partial(self) -> tuple[HeldState, ...]:
        found = [state.version for rank in range(len(self._files)) for state in self._states(rank)]
        if not found:
            return ()
        attempt, step = max(found)
        return (HeldState(attempt=attempt, step=step, part=self._part, is_partial=True),)

    def _verify_rank(self, local_rank: int, is_meant: Callable[[SlotState], bool]) -> None:
        descriptor, numbers = self._files[local_rank], self._numbers[local_rank]
        for state in filter(is_meant, self._states(local_rank)):
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


def close_memories(fetching: asyncio.Future[list[int] | None]) -> None:
    """Close the memories that `fetch` has filled for an attempt that does not start any more."""
    if not fetching.cancelled() and fetching.exception() is None:
        for descriptor in fetching.result() or ():
            os.close(descriptor)


def _allocated(numbers: memoryview, slot: int) -> int:
    return int(slot_header(numbers, slot)[ALLOCATED])


def _not_here(version: StateVersion) -> StateNotHereError:
    return StateNotHereError(f"the state of step {version.step} that the attempt goes on with is not here")


def _checksum(descriptor: int, state: SlotState) -> int | None:
    """Return the checksum of a state, None if the file ends before it does.

    It is read, not mapped: to touch a mapped page that its rank has given back would cost the agent memory. What it is
    read into is given back at once: of a bytearray the C library would keep one for each thread that had one.
    """
    found, offset, end = 0, slot_offset(state.slot), slot_offset(state.slot) + state.length
    with mmap.mmap(-1, min(READ_BYTES, state.length)) as buffer, memoryview(buffer) as memory:
        while offset < end:
            count = os.preadv(descriptor, [memory[: end - offset]], offset)
            if not count:
                return None
            found, offset = zlib.crc32(memory[:count], found), offset + count
    return found
