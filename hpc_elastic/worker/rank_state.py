"""Writes a rank's training state into the memory that its agent keeps, and reads the one that it is to go on with.

Theory of operation. `hpc_elastic.state_memory` has the layout. A save overwrites the older of two states, or the oldest
that need not be kept for its copy on another node, and commits the new one when it is copied. Ranks that synchronise
their gradients are never more than one save apart, so there is always a step that all of them hold: the one that the
slowest saved last. The agents find it when the workers have ended, the head chooses it for the next attempt, and each
rank is told in which slot its own lies. A rank with no room for two saves in a row forgets what it has saved before,
and gives the memory back: the script's own checkpoints are newer from then on.

The checksum is computed by a thread after the commit (`completion`), because it takes longer than the copy. A save
never waits for another process, nor for a checksum: it ends that of the state which it overwrites. Tensors of CUDA
devices are copied beside the program (`device_copy`): then the thread commits the state once they are there, and the
next save waits for that, as does the end of the process.

A process that was forked from the rank, such as one that loads data, has no memory: it neither saves nor loads.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any

from hpc_elastic.aligned_memory import MADV_POPULATE_READ, MADV_POPULATE_WRITE, address_of, advise, map_aligned
from hpc_elastic.cgroup_memory import MemoryRoom, read_room
from hpc_elastic.state_memory import (
    ALLOCATED,
    ATTEMPT,
    CHECK,
    COPY_EVERY,
    CRC_OF,
    GROWS_BY,
    IS_CLOSED,
    IS_REPLICATED,
    KEPT_COPIED,
    KEPT_FREE,
    LENGTH,
    LIMIT,
    LOAD_FROM,
    LOAD_SLOT,
    LOCAL_RANK,
    NO_COPIES,
    NODE,
    NOTHING,
    ORDINAL,
    PERCENT,
    PID,
    PIN_IS_FIRM,
    SAVED_IN,
    SEQUENCE,
    SLOTS,
    STEP,
    TOTAL,
    VARIABLE,
    SlotState,
    choose_slot,
    free_slot,
    header_check,
    is_state_memory,
    map_control,
    pinned_state,
    read_slots,
    reserve_slot,
    slot_header,
    slot_offset,
    world_name,
)
from hpc_elastic.whole_lines import tell
from hpc_elastic.worker.completion import Completion
from hpc_elastic.worker.device_copy import DeviceCopies, DeviceCopy
from hpc_elastic.worker.state_encoding import Encoded, StateError, decode_state, encode_state

INSIDE = "hpc-elastic: memory: no state is kept for the ranks of a launcher inside the worker's command"
CLOSED = "the script has closed the descriptor of this rank's memory, as os.closerange does"
KILLED = "the out-of-memory killer has ended a process of this node while states took memory"
_MIB = 1024 * 1024

_state: RankState | None = None
_has_looked = False


class _DoesNotFitError(Exception):
    """There is no room for a state; the message has the numbers."""


class RankState:
    """The memory of this process's rank, for one attempt.

    Args:
        own: the descriptor of the rank's own memory, which stays open.
        node: that of the node's local rank 0, which stays open.
    """

    def __init__(self, own: int, node: int) -> None:
        self._own, self._node = own, node
        self._files = {descriptor: _identity(descriptor) for descriptor in (own, node)}
        self._numbers = map_control(own)
        self._numbers[PID] = os.getpid()
        self._maps: dict[int, memoryview] = {}  # by slot
        self._completions: dict[int, Completion] = {}  # by slot
        self._copied: Completion | None = None  # of a state that may still be copied from devices
        self._devices: DeviceCopies | None = None
        self._lock = threading.RLock()
        self._is_saving = False
        self._has_complained = False
        self._refused = 0  # saves in a row that did not fit
        self._saves = 0
        self._numbers[NO_COPIES] = 0

    def load(self) -> tuple[Any, int] | tuple[None, None]:
        """Return the state that the head chose for this attempt, and its step; (None, None) if it chose none."""
        if (source := self._numbers[LOAD_FROM]) == NOTHING:
            return None, None
        descriptor, slot = self._node if source == NODE else self._own, self._numbers[LOAD_SLOT]
        if not self._is_open(descriptor):
            raise StateError(f"memory.load: {CLOSED}")
        header = slot_header(map_control(descriptor), slot)
        sequence, length, step = header[SEQUENCE], header[LENGTH], header[STEP]
        # What an attempt begins with was saved in an earlier one: this one may have put another state there since.
        if not sequence or header[SAVED_IN] == self._numbers[ATTEMPT]:
            raise StateError("memory.load: the state was overwritten; call it before this attempt's second save")
        memory = map_aligned(descriptor, -(-length // GROWS_BY) * GROWS_BY, slot_offset(slot))
        advise(memory, MADV_POPULATE_READ)  # on an older kernel the copy touches each page
        state = decode_state(memory[:length])
        if header[SEQUENCE] != sequence:  # a rank of this node has saved twice before this one has read
            raise StateError(f"memory.load: step {step} was overwritten meanwhile; call it before the first save")
        return state, step

    def save(self, step: int, state: object, *, is_replicated: bool) -> None:
        """Copy a state into the older slot, unless this attempt has saved the step already, or it does not fit.

        In the handler of a signal that has interrupted a save it does nothing: that save goes on afterwards.

        Raises:
            StateError: the state holds something that cannot be kept.
            ValueError: this attempt has saved a later step.
        """
        with self._lock:
            if self._is_saving:
                return
            self._is_saving = True
            try:
                self._save(step, state, is_replicated=is_replicated)
            finally:
                self._is_saving = False

    def _save(self, step: int, state: object, *, is_replicated: bool) -> None:
        self._await_commit()
        newest = next((each for each in read_slots(self._numbers) if each.attempt == self._numbers[ATTEMPT]), None)
        if newest is not None and step < newest.step:
            raise ValueError(f"memory.save: found step {step}, expected one after {newest.step}, the latest")
        if newest is not None and step == newest.step:
            return
        self._saves += 1
        if is_replicated and self._numbers[LOCAL_RANK] != 0:
            return
        encoded = encode_state(state)
        try:
            self._write(step, encoded, is_replicated=is_replicated)
            self._refused = 0
        except _DoesNotFitError as error:
            self._complain(str(error))
            self._refused += 1
            # Another rank may have to go back by one save, but not to what gets older and older.
            is_shared = any(each.is_replicated for each in read_slots(self._numbers))  # which others may load still
            if self._refused > 1 or (self._numbers[IS_CLOSED] and not is_shared):
                for slot in range(SLOTS):
                    self._free(slot)

    def _write(self, step: int, encoded: Encoded, *, is_replicated: bool) -> None:
        if not self._is_open(self._own):
            raise _DoesNotFitError(CLOSED)
        if self._numbers[IS_CLOSED]:
            raise _DoesNotFitError(KILLED)
        held = read_slots(self._numbers)
        slot, address = self._take_slot(held, encoded.length, is_replicated=is_replicated)
        header = slot_header(self._numbers, slot)
        sequence = 1 + max((each.sequence for each in held), default=0)
        header[SEQUENCE] = header[CRC_OF] = 0  # a later save may have the number of one that the agent has cleared
        wait = self._begin_copies(encoded, slot, address)
        header[SAVED_IN], header[STEP], header[LENGTH] = self._numbers[ATTEMPT], step, encoded.length
        header[IS_REPLICATED], header[ORDINAL] = is_replicated, self._saves
        header[CHECK] = header_check(header, sequence)
        if wait is None:
            header[SEQUENCE] = sequence
        completion = Completion(self._maps[slot][: encoded.length], header, sequence, wait)
        try:
            completion.start()
        except RuntimeError:  # the interpreter ends, or there can be no more threads
            with contextlib.suppress(RuntimeError):  # the training gets the device's error, too
                completion.commit()
            return
        self._completions[slot] = completion
        if wait is not None:
            self._copied = completion

    def _begin_copies(self, encoded: Encoded, slot: int, address: int) -> Callable[[], None] | None:
        """Write a state but for what is copied beside the program, and return what waits for that; None: all is there.

        What is on a device is copied at once where memory cannot be pinned.
        """
        if not encoded.is_on_device:
            encoded.write(address)
            return None
        if self._devices is None:
            self._devices = DeviceCopies()
            atexit.register(self._await_commit)
        if not self._devices.pin(address, len(self._maps[slot])):
            encoded.write(address)
            return None
        later: list[DeviceCopy] = []
        encoded.write(address, later)
        return self._devices.begin(later)

    def _await_commit(self) -> None:
        """Wait until the latest state is copied from its devices and committed."""
        copied, self._copied = self._copied, None
        if copied is not None:
            copied.await_commit()

    def _take_slot(self, held: Sequence[SlotState], length: int, *, is_replicated: bool) -> tuple[int, int]:
        """Return the slot for a state of this length, and its address; nothing reads it any more.

        Raises:
            _DoesNotFitError: there is no room.
        """
        with_memory = [slot for slot in range(SLOTS) if self._allocated(slot)]
        every = 0 if is_replicated or self._numbers[NO_COPIES] else self._numbers[COPY_EVERY]
        if (beside := self._slot_beside_pinned(held, with_memory, every, length)) is not None:
            return beside
        slot = choose_slot(held, with_memory, every)
        try:
            is_one_more, grows = slot not in with_memory, length > self._allocated(slot)
            if every and len(with_memory) > 1 and (is_one_more or (grows and len(with_memory) > 2)):
                self._check_copies(length)
            address = self._reserve(slot, length)
        except _DoesNotFitError as error:
            slot, address = self._take_one_of_two(held, with_memory, length)
            if every:
                self._numbers[NO_COPIES] = 1
                tell(f"hpc-elastic: memory.save: {error}; training goes on without copies on another node")
        self._end_completion(slot)
        return slot, address

    def _slot_beside_pinned(
        self, held: Sequence[SlotState], with_memory: Sequence[int], every: int, length: int
    ) -> tuple[int, int] | None:
        """Return the slot for a state, and its address, if another one is pinned; None if the save goes on as ever.

        Where there is no room for one more slot, only a pin that is firm counts: then all ranks hold that state, and
        go on with it if they die in the middle of a save. Before, this rank has to keep its two newest ones.
        """
        if (pinned := pinned_state(self._numbers, held)) is None:
            return None
        slots = [choose_slot(held, with_memory, every, pinned)]
        if self._numbers[PIN_IS_FIRM]:
            slots += [choose_slot(held, with_memory, 0, pinned), *with_memory]  # copies, and then the newest, give way
        for slot in slots:
            if slot not in (NOTHING, pinned.slot):
                with contextlib.suppress(_DoesNotFitError):
                    address = self._reserve(slot, length)
                    self._end_completion(slot)
                    return slot, address
        return None

    def _end_completion(self, slot: int) -> None:
        if (completion := self._completions.pop(slot, None)) is not None:
            completion.end()

    def _take_one_of_two(self, held: Sequence[SlotState], with_memory: Sequence[int], length: int) -> tuple[int, int]:
        """Return a slot beside that of the newest state, and its address; free the other ones, which copies had.

        Raises:
            _DoesNotFitError: there is no room for two slots; all are as before.
        """
        newest = held[0].slot if held else None
        slot = max((slot for slot in range(SLOTS) if slot != newest), key=self._allocated)
        others = [each for each in with_memory if each not in (newest, slot)]
        if others:
            self._check_growth(slot, length, others)
        for each in others:
            self._free(each)
        return slot, self._reserve(slot, length)

    def _free(self, slot: int) -> None:
        """Forget what is in a slot, and give its memory back, as far as the kernel takes it."""
        self._end_completion(slot)
        self._unmap(slot)
        free_slot(self._numbers, self._own if self._is_open(self._own) else None, slot)

    def _unmap(self, slot: int) -> None:
        if (memory := self._maps.pop(slot, None)) is not None and self._devices is not None:
            self._devices.unpin(address_of(memory))

    def _is_open(self, descriptor: int) -> bool:
        """Return whether a descriptor is still that of the memory: the script may have closed it, and opened a file."""
        return _identity(descriptor) == self._files[descriptor]

    def _allocated(self, slot: int) -> int:
        return int(slot_header(self._numbers, slot)[ALLOCATED])

    def _check_copies(self, length: int) -> None:
        """Check that there is room for what copies need: states that wait for theirs, and those of another node here.

        Raises:
            _DoesNotFitError: there is not.
        """
        needed, limit = (SLOTS + KEPT_COPIED) * -(-length // GROWS_BY) * GROWS_BY, self._numbers[LIMIT]
        if needed > limit:
            share = f"{self._numbers[PERCENT]} % of {_mebibytes(self._numbers[TOTAL])}"
            raise _DoesNotFitError(
                f"with copies on another node a state of {_mebibytes(length)} can need {_mebibytes(needed)}, and this "
                f"rank's part of the {share} that states may take is {_mebibytes(limit)}"
            )

    def _reserve(self, slot: int, length: int) -> int:
        """Return the address of a slot that has at least `length` bytes of memory.

        Raises:
            _DoesNotFitError: there is no room.
        """
        header = slot_header(self._numbers, slot)
        if length > header[ALLOCATED]:
            self._grow(slot, length)
        if slot not in self._maps or len(self._maps[slot]) != header[ALLOCATED]:
            try:
                memory = map_aligned(self._own, header[ALLOCATED], slot_offset(slot))
            except (OSError, ValueError) as error:  # RLIMIT_AS, RLIMIT_NOFILE
                raise _DoesNotFitError(f"{_mebibytes(header[ALLOCATED])} could not be mapped: {error}") from error
            advise(memory, MADV_POPULATE_WRITE)  # on an older kernel the first save touches each page
            self._unmap(slot)
            self._maps[slot] = memory
        return address_of(self._maps[slot])

    def _grow(self, slot: int, length: int) -> None:
        wanted = self._check_growth(slot, length)
        more = wanted - self._allocated(slot)
        try:
            reserve_slot(self._numbers, self._own, slot, wanted)
        except OSError as error:
            tip = "; `ulimit -f` has to be unlimited" if error.errno == errno.EFBIG else ""
            raise _DoesNotFitError(f"{_mebibytes(more)} more could not be reserved: {error.strerror}{tip}") from error

    def _check_growth(self, slot: int, length: int, freed: Collection[int] = ()) -> int:
        """Return the size that a slot gets for a state of this length.

        The memory of the other slots is asked for with it: one that is too small for the next save would be the end of
        saving, with one state left that gets older and older.

        Args:
            slot: the slot.
            length: of the state.
            freed: slots that give their memory back before.

        Raises:
            _DoesNotFitError: there is no room.
        """
        wanted = -(-length // GROWS_BY) * GROWS_BY
        others = [each for each in range(SLOTS) if each != slot and each not in freed and self._allocated(each)]
        needed = wanted + (sum(max(wanted, self._allocated(each)) for each in others) or wanted)
        limit = self._numbers[LIMIT]
        if needed > limit:
            share = f"{self._numbers[PERCENT]} % of {_mebibytes(self._numbers[TOTAL])}"
            copies = "two copies" if len(others) < 2 else f"{len(others) + 1} copies"
            raise _DoesNotFitError(
                f"{copies} of a state of {_mebibytes(length)} need {_mebibytes(needed)}, and this rank's part of the "
                f"{share} that states may take is {_mebibytes(limit)}"
            )
        _check_room(length, needed - sum(map(self._allocated, range(SLOTS))), read_room())
        return wanted

    def _complain(self, text: str) -> None:
        if not self._has_complained:
            self._has_complained = True
            tell(f"hpc-elastic: memory.save: {text}; training goes on without states in memory")


def _identity(descriptor: int) -> tuple[int, int] | None:
    """Return what tells a file from all others, None if the descriptor is closed."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _check_room(length: int, more: int, room: MemoryRoom) -> None:
    if more > room.free - int(KEPT_FREE * room.total):
        raise _DoesNotFitError(
            f"a state of {_mebibytes(length)} needs {_mebibytes(more)} more, and {_mebibytes(room.free)} of "
            f"{_mebibytes(room.total)} are free"
        )


def _mebibytes(count: int) -> str:
    return f"{count / _MIB:.1f} MiB" if count < 100 * _MIB else f"{count / _MIB:.0f} MiB"


def begin(own: int, node: int) -> None:
    """Use the memories with these descriptors, which no program that this process starts inherits."""
    global _state, _has_looked
    for descriptor in (own, node):
        os.set_inheritable(descriptor, False)
    _state, _has_looked = RankState(own, node), True


def rank_state() -> RankState | None:
    """Return the memory of this process's rank, None outside of a run and in a process that a rank has forked."""
    return _find() if _state is None else _state


def _find() -> RankState | None:
    """Look once for the memory that the environment names; None if another process of the rank saves.

    The ranks of a launcher inside the command have none. Those of torchrun do not inherit the descriptors; those of a
    shell's loop do, several for one memory: the first would load its state, and the others would load from disk.
    """
    global _has_looked
    if _has_looked:
        return None
    _has_looked = True
    words = os.environ.pop(VARIABLE, "").split(":")
    if len(words) != 3 or not all(word.isdecimal() for word in words[:2]):
        return None
    own, node = map(int, words[:2])
    if words[2] != world_name():
        tell(INSIDE)
        return None
    if not (is_state_memory(own) and is_state_memory(node)):
        return None
    try:
        pid = map_control(own)[PID]
        if pid not in (0, os.getpid()) and os.path.exists(f"/proc/{pid}"):
            return None
        begin(own, node)
    except (OSError, ValueError):
        return None
    return _state


def _forget() -> None:
    """Have no memory in a process that was forked: it is not the rank."""
    global _state, _has_looked
    _state, _has_looked = None, True


os.register_at_fork(after_in_child=_forget)
