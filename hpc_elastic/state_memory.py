"""Where a rank's training state lies in memory that outlives it: the layout that the rank and its agent share.

Each local rank has a file in memory without a name, which the agent makes and keeps from attempt to attempt. Its first
page is numbers of 64 bits: what the agent says, and a header for each slot. The slots themselves lie far
apart in the file, at `SLOT_STRIDE`, so that each can grow; what is not written takes no memory. Two of them are used,
and up to four where the states are copied to another node (`choose_slot`). While a person has a state written to disk
it is pinned: the ranks save beside it, in one slot more.

A slot is written in this order: its header's `SEQUENCE` becomes 0, the state is copied, the header is filled, and
`SEQUENCE`, the commit word, is written last. A rank that is killed at any point leaves a slot that is complete or that
does not count. The checksum of the state follows when a thread has computed it (`CRC_OF` names the commit that it is
for): it is there against damaged memory, not against torn writes.

Of each number there is one writer: the agent of those before the slots, but for `PID` and `NO_COPIES`; the rank of the
slots. The agent clears slots only while no worker runs.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from hpc_elastic.aligned_memory import HUGE, fill_with_huge_pages
from hpc_elastic.cgroup_memory import MemoryRoom, read_room

VARIABLE = "HPC_ELASTIC_STATE"  # OWN:NODE:WORLD, two descriptors and `world_name`; of `command:` entrypoints only
MEMORY_NAME = "hpc-elastic-state"
SLOTS = 4
KEPT_COPIED = 2  # the newest states that are copied to another node are not overwritten
SLOT_STRIDE = 1 << 40
CONTROL_BYTES = 4096
GROWS_BY = HUGE  # the size of a slot is a multiple of it: huge pages take no more memory than small ones
KEPT_FREE = 0.02  # of the memory: what is left free
ROOM_PARTS = 16  # memory is taken in so many parts of that: that many ranks may look up the same room at once
_MIB = 1024 * 1024
_RELEASED_AT_ONCE = 32 * _MIB
_BLOCK = 512  # bytes of one of `st_blocks`
LARGEST_SEQUENCE = 2**62
LARGEST_STEP = 2**63 - 1  # a number of 64 bits

# The numbers of the agent.
LAYOUT = 0  # the version of this layout
PID = 1  # the process that saves, 0 as long as there is none
ATTEMPT = 2
LOAD_FROM = 3  # NOTHING, OWN, or NODE: the memory of the node's local rank 0, whose state all ranks share
LOAD_SLOT = 4
LIMIT = 5  # how many bytes this rank's slots may take together
PERCENT = 6  # the share of the node's memory that the states of all its ranks may take
TOTAL = 7  # the bytes of which that is a share
LOCAL_RANK = 8
COPY_EVERY = 9  # each how manieth save is copied to another node; 0: none. The keeper beside the agent raises it
NO_COPIES = 10  # the rank has no room for states that are copied
PIN_STEP = 11  # one more than the first step that is pinned (`pinned_state`), 0: none is
PIN_ATTEMPT = 12  # and the attempt in which that is saved
PIN_IS_FIRM = 13  # 1: where there is no room for one more slot, the newest state is overwritten, not the pinned one
IS_CLOSED = 14  # 1: nothing is saved, because the out-of-memory killer has ended a process of this node
NOTHING, OWN, NODE = -1, 0, 1
LAYOUT_VERSION = 4

# The numbers of a slot's header.
FIRST_SLOT = 64
SLOT_NUMBERS = 16
SEQUENCE = 0  # the commit word: the how manieth save this is, 0 if the slot holds nothing
SAVED_IN = 1  # the attempt
STEP = 2
LENGTH = 3  # in bytes
IS_REPLICATED = 4
CHECK = 5  # the checksum of the numbers above
CRC = 6  # of the state
CRC_OF = 7  # the commit that `CRC` is for
ALLOCATED = 8  # how many bytes of the slot are backed by memory
ORDINAL = 9  # the how manieth save of the attempt this is, 0 for the state that it has begun with


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotState:
    """A complete state in a slot; `crc` is None if its rank ended before it was computed."""

    slot: int
    sequence: int
    attempt: int
    step: int
    length: int
    is_replicated: bool
    crc: int | None
    ordinal: int = 0

    @property
    def version(self) -> tuple[int, int]:
        """The attempt in which it was saved, and its step: what it is compared by."""
        return self.attempt, self.step


def create_memory(local_rank: int) -> int:
    """Create the memory of a local rank, without a state, and return its descriptor, which the caller owns.

    Nobody can shrink it: who reads a mapped page that a file has lost gets a SIGBUS, and the agent reads what the rank
    could take away.

    Raises:
        OSError: there can be no such memory.
    """
    if not hasattr(os, "memfd_create"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    descriptor = os.memfd_create(MEMORY_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.truncate(descriptor, CONTROL_BYTES)
        with contextlib.suppress(OSError):  # as in gVisor
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        numbers = map_control(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    numbers[LOCAL_RANK], numbers[LOAD_FROM] = local_rank, NOTHING
    numbers[LAYOUT] = LAYOUT_VERSION
    return descriptor


def map_control(descriptor: int) -> memoryview:
    """Return the numbers of the first page.

    Raises:
        OSError, ValueError: the descriptor is not of such a memory.
    """
    return memoryview(mmap.mmap(descriptor, CONTROL_BYTES)).cast("q")


def slot_header(numbers: memoryview, slot: int) -> memoryview:
    """Return the numbers of a slot's header."""
    begin = FIRST_SLOT + slot * SLOT_NUMBERS
    return numbers[begin : begin + SLOT_NUMBERS]


def slot_offset(slot: int) -> int:
    """Return where a slot begins in the file."""
    return (slot + 1) * SLOT_STRIDE


def header_check(header: memoryview, sequence: int) -> int:
    """Return the checksum of what a header says of its state."""
    words = (sequence, header[SAVED_IN], header[STEP], header[LENGTH], header[IS_REPLICATED])
    return zlib.crc32(b"".join(word.to_bytes(8, "little", signed=True) for word in words))


def read_slots(numbers: memoryview) -> list[SlotState]:
    """Return the complete states of a memory, the newest first; a header that is damaged does not count.

    What its rank may have written at random does no harm to who reads it, but `ALLOCATED` can be more than there is.
    """
    found = []
    for slot in range(SLOTS):
        header = slot_header(numbers, slot)
        sequence = header[SEQUENCE]
        if not 0 < sequence < LARGEST_SEQUENCE or header[CHECK] != header_check(header, sequence):
            continue
        if header[SAVED_IN] < 0 or header[STEP] < 0:  # 0: it was loaded from another run
            continue
        if not 0 < header[LENGTH] <= header[ALLOCATED] <= SLOT_STRIDE:
            continue
        found.append(
            SlotState(
                slot=slot,
                sequence=sequence,
                attempt=header[SAVED_IN],
                step=header[STEP],
                length=header[LENGTH],
                is_replicated=bool(header[IS_REPLICATED]),
                crc=header[CRC] if header[CRC_OF] == sequence else None,
                ordinal=header[ORDINAL],
            )
        )
    return sorted(found, key=lambda state: state.version, reverse=True)


def is_copied(ordinal: int, every: int) -> bool:
    """Return whether the state of an attempt's save of this number is copied to another node, of each `every`-th."""
    return every > 0 and ordinal >= 0 and ordinal % every == 0


def has_missed(ordinal: int, last: int | None, every: int) -> bool:
    """Return whether the state of a save is passed over that should have been copied.

    Args:
        ordinal: the number of the newest save that is to be copied.
        last: that of the one that was copied before it, None if there is none.
        every: each how manieth is copied.
    """
    return last is not None and last % every == 0 and ordinal - last > every


def pin_states(numbers: memoryview, first: tuple[int, int] | None, *, is_firm: bool = False) -> None:
    """Have a rank keep the oldest state from this version on, which it may have still to save; None: no state."""
    numbers[PIN_STEP] = 0
    if first is not None:
        numbers[PIN_ATTEMPT], numbers[PIN_IS_FIRM] = first[0], is_firm
        numbers[PIN_STEP] = min(first[1] + 1, LARGEST_STEP)


def pinned_state(numbers: memoryview, held: Sequence[SlotState]) -> SlotState | None:
    """Return the state that the rank is to keep, None if there is none.

    The agent may pin it while the rank has begun to overwrite it: whoever reads it looks afterwards if it `is_held`.
    """
    if not numbers[PIN_STEP]:
        return None
    first = (numbers[PIN_ATTEMPT], numbers[PIN_STEP] - 1)
    return min((each for each in held if each.version >= first), key=lambda each: each.version, default=None)


def choose_slot(
    held: Sequence[SlotState], with_memory: Collection[int], every: int, pinned: SlotState | None = None
) -> int:
    """Return the slot into which the next state goes; `NOTHING` if a pinned state has taken the last one.

    The newest state is never overwritten, and of those that are copied to another node not the two newest: a node that
    is lost leaves a copy of the newest or of the one before, and all others must have the same step still.

    Args:
        held: the complete states, the newest first.
        with_memory: the slots that have memory.
        every: each how manieth save is copied; 0: none.
        pinned: a state that is not overwritten either.
    """
    copied = [state.slot for state in held if is_copied(state.ordinal, every)]
    kept = {state.slot for state in held[:1]}.union(copied[:KEPT_COPIED], [] if pinned is None else [pinned.slot])
    states = {state.slot: state.version for state in held}
    free = [slot for slot in range(SLOTS) if slot not in kept]
    ranked = sorted(free, key=lambda slot: (slot not in with_memory, slot in states, states.get(slot, (0, 0)), slot))
    return ranked[0] if ranked else NOTHING


def reserve_slot(
    numbers: memoryview, descriptor: int, slot: int, size: int, find_room: Callable[[], MemoryRoom] = read_room
) -> None:
    """Have memory behind the first `size` bytes of a slot, a multiple of `GROWS_BY`, in huge pages if it can have them.

    The caller has looked whether there is room. Others may have done so at the same moment, such as the other ranks of
    the node at their first save, and a cgroup that is full refuses nothing: the kernel kills one of its processes. So
    the room is looked up again before each part.

    Args:
        numbers: the first page of the memory, which says how much of the slot is there already.
        descriptor: of the memory.
        slot: the slot.
        size: in bytes.
        find_room: returns how much memory is free.

    Raises:
        OSError: there is none; the slot is as it was.
    """
    header = slot_header(numbers, slot)
    begin, end = slot_offset(slot) + header[ALLOCATED], slot_offset(slot) + size
    if begin >= end:
        return
    if os.fstat(descriptor).st_size < end + HUGE:  # what follows takes no memory; `map_aligned` needs it
        os.ftruncate(descriptor, end + HUGE)
    room = find_room()
    part = max(1, int(KEPT_FREE * room.total) // ROOM_PARTS // GROWS_BY) * GROWS_BY
    try:
        for first in range(begin, end, part):
            _reserve_part(descriptor, first, min(part, end - first))
            if first + part < end:
                _check_free(find_room())
    except OSError:
        release_memory(descriptor, begin, end - begin)
        raise
    header[ALLOCATED] = size


def _reserve_part(descriptor: int, begin: int, size: int) -> None:
    with contextlib.suppress(OSError, ValueError):
        fill_with_huge_pages(descriptor, size, begin)
    # Piece by piece: older kernels end a call at any signal, and Python begins it anew, for ever if there is a
    # timer that strikes before it is done.
    for offset in range(begin, begin + size, GROWS_BY):
        os.posix_fallocate(descriptor, offset, GROWS_BY)


def _check_free(room: MemoryRoom) -> None:
    if room.free < int(KEPT_FREE * room.total):
        words = (
            f"{room.free / _MIB:.1f} MiB of {room.total / _MIB:.0f} MiB are free, others have taken the rest meanwhile"
        )
        raise OSError(errno.ENOMEM, words)


def free_slot(numbers: memoryview, descriptor: int | None, slot: int) -> None:
    """Forget what is in a slot, and give its memory back, as far as the kernel takes it; None: it is closed."""
    header = slot_header(numbers, slot)
    size, header[SEQUENCE], header[CRC_OF] = header[ALLOCATED], 0, 0
    header[ALLOCATED] = 0
    if descriptor is not None:
        release_memory(descriptor, slot_offset(slot), size)


def free_unused(numbers: memoryview, descriptor: int) -> None:
    """Give the memory of all slots back in which no state is."""
    for slot in range(SLOTS):
        if not slot_header(numbers, slot)[SEQUENCE]:
            free_slot(numbers, descriptor, slot)


def bytes_taken(descriptor: int) -> int:
    """Return how many bytes the slots of a memory take, as the kernel counts them."""
    return max(0, os.fstat(descriptor).st_blocks * _BLOCK - CONTROL_BYTES)


def release_memory(descriptor: int, begin: int, size: int) -> None:
    """Give the memory behind bytes of a file back, as far as the kernel takes it."""
    end = begin + size
    for offset in range(begin, end, _RELEASED_AT_ONCE):  # a process may have little room for mappings (`ulimit -v`)
        with contextlib.suppress(OSError, ValueError):
            mmap.mmap(descriptor, min(_RELEASED_AT_ONCE, end - offset), offset=offset).madvise(mmap.MADV_REMOVE)


@contextlib.contextmanager
def fill_slot(numbers: memoryview, descriptor: int, state: SlotState) -> Iterator[Callable[[memoryview, int], object]]:
    """Put a state into a slot of a memory with which no worker works; it counts when the body ends without an error.

    Yields:
        A function that writes a piece of the state at an offset.

    Raises:
        OSError: there is no memory for it.
    """
    size = -(-state.length // GROWS_BY) * GROWS_BY
    header = slot_header(numbers, state.slot)
    header[SEQUENCE] = 0
    reserve_slot(numbers, descriptor, state.slot, size)
    yield lambda piece, offset: os.pwrite(descriptor, piece, slot_offset(state.slot) + offset)
    header[SAVED_IN], header[STEP], header[LENGTH] = state.attempt, state.step, state.length
    header[IS_REPLICATED], header[ORDINAL] = state.is_replicated, state.ordinal
    header[CHECK] = header_check(header, state.sequence)
    if state.crc is not None:
        header[CRC], header[CRC_OF] = state.crc, state.sequence
    header[SEQUENCE] = state.sequence


def set_checksum(numbers: memoryview, state: SlotState, crc: int) -> None:
    """Say what the checksum of a state is that `fill_slot` has put into a memory."""
    header = slot_header(numbers, state.slot)
    header[CRC], header[CRC_OF] = crc, state.sequence


def is_held(numbers: memoryview, state: SlotState) -> bool:
    """Return whether a slot still holds a state that `read_slots` has found there."""
    return bool(slot_header(numbers, state.slot)[SEQUENCE] == state.sequence)


def world_name() -> str:
    """Return what tells this process's world from that of another launcher, and is the same on all of its ranks."""
    return f"{os.environ.get('WORLD_SIZE', '')}@{os.environ.get('MASTER_PORT', '')}"


def is_state_memory(descriptor: int) -> bool:
    """Return whether a descriptor, which an environment variable names, is really that of such a memory."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith(f"/memfd:{MEMORY_NAME}")
    except OSError:
        return False
