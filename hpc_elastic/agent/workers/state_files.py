"""Copies training states from memory to files of the run directory, and from there into memory.

A state's file holds the bytes that were in memory, which are those of a safetensors file. Its record, with the length
and the checksum, is written when the file is complete and on disk: a state without a record does not count.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hpc_elastic.cgroup_memory import read_room
from hpc_elastic.codec import to_json
from hpc_elastic.errors import RunDirectoryError
from hpc_elastic.membership.held_states import rank_places, shared_place
from hpc_elastic.membership.messages import Assign
from hpc_elastic.rundir.kept_records import find_latest_attempt, parse_kept_record
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.state_records import OF_ANOTHER_RUN, Flush, KeptRecord, StateVersion
from hpc_elastic.rundir.store import (
    FILE_MODE,
    file_system_errors,
    find_json,
    list_numbers,
    make_directory,
    rename,
    write_all,
    write_json,
)
from hpc_elastic.state_memory import KEPT_FREE, SlotState, create_memory, fill_slot, map_control, slot_offset

PIECE = 1024 * 1024


class StateFileError(Exception):
    """A state could not be copied; the message says what was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePart:
    """A state in memory that is to be written: the name of its files, whose it is, and where it is, if it is there."""

    name: str
    place: str
    descriptor: int
    state: SlotState | None


def write_states(layout: RunLayout, flush: Flush, parts: Sequence[StatePart]) -> str:
    """Write states from memory to their files, all at the same time; return a line that says how it went."""
    began, outcomes = time.monotonic(), dict.fromkeys(range(len(parts)), "its thread has ended")

    def write(number: int) -> None:
        try:
            sizes[number] = _write(layout, flush, parts[number])
        except (StateFileError, RunDirectoryError, OSError) as error:
            outcomes[number] = str(error)
        except Exception as error:  # whatever it is, the end of the run is as it was decided
            outcomes[number] = repr(error)
        else:
            del outcomes[number]

    # No pool, whose threads the end of the process would wait for, on a file system that hangs for ever.
    sizes: dict[int, int] = {}
    threads = [threading.Thread(target=write, args=(number,), daemon=True) for number in range(1, len(parts))]
    with contextlib.suppress(RuntimeError):  # there can be no more threads: what has none is not written
        for thread in threads:
            thread.start()
    write(0)
    for thread in threads:
        if thread.ident is not None:
            thread.join()
    if outcomes:
        return f"step {flush.state.step} cannot be kept for the next allocation: {outcomes[min(outcomes)]}"
    took = time.monotonic() - began
    size = sum(sizes.values())
    return f"kept step {flush.state.step} for the next allocation: {size / 1e6:.1f} MB in {took:.1f} s"


def _write(layout: RunLayout, flush: Flush, part: StatePart) -> int:
    """Write a state to its file, and then its record; return how many bytes it has.

    Raises:
        StateFileError: it is gone, or damaged.
        RunDirectoryError: it cannot be written; nothing of it is left.
    """
    name, state = part.name, part.state
    if state is None:
        raise StateFileError(f"the state for {layout.kept_state(flush.ended, name)} is not in memory any more")
    path = layout.kept_state(flush.ended, name)
    temporary = os.path.join(layout.kept_states(flush.ended), f".{name}.{os.urandom(6).hex()}.tmp")
    with file_system_errors(path):
        make_directory(layout.kept_states(flush.ended))
        target = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        try:
            try:
                crc = _copy(
                    lambda piece, offset: os.preadv(part.descriptor, [piece], slot_offset(state.slot) + offset),
                    lambda piece, _: write_all(target, piece),
                    state.length,
                )
                os.fsync(target)
            finally:
                os.close(target)
            if crc is None or crc != (state.crc if state.crc is not None else crc):
                raise StateFileError(f"the state for {path} is damaged in memory")
            rename(temporary, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
    record = KeptRecord(attempt=state.attempt, step=state.step, place=part.place, length=state.length, crc=crc)
    write_json(layout.kept_record(flush.ended, name), to_json(record))
    return state.length


def read_states(
    layout: RunLayout, assign: Assign, version: StateVersion, most: int, *, is_of_another_run: bool = False
) -> list[int]:
    """Read the states of this node's ranks from their files; return the descriptors of new memories, by local rank.

    The caller owns the descriptors. A state that is the same on all ranks is only in the memory of local rank 0.

    Args:
        layout: the run directory.
        assign: this node's part of the world.
        version: which state.
        most: how many bytes may be read.
        is_of_another_run: `layout` is that of the run with whose state this one has begun. Of its folders only the
            latest one counts: a step of an earlier one is of another history.

    Raises:
        StateFileError: a state is not there, is damaged, or there is no room for it.
        RunDirectoryError: a file cannot be read.
    """
    found: list[_Kept] = []
    if is_of_another_run:
        folders, find = [find_latest_attempt(layout)], _Kept.find_of_another_run
    else:
        folders, find = [assign.attempt - 1, *reversed(list_numbers(layout.memory))], _Kept.find
    for ended in dict.fromkeys(folders):
        shared = find(layout, ended, layout.kept_of_all(assign.role), shared_place(assign.role), version)
        ranks = range(assign.first_rank, assign.first_rank + assign.workers)
        found = (
            [shared]
            if shared is not None
            else [
                each
                for rank, place in zip(ranks, rank_places(assign), strict=True)
                if (each := find(layout, ended, layout.kept_of_rank(rank), place, version)) is not None
            ]
        )
        if shared is not None or len(found) == assign.workers:
            break
    else:
        raise StateFileError(f"{layout.memory} has not all of it")
    records = [each.record for each in found]
    needed, room = sum(record.length for record in records), read_room()
    if needed > min(most, room.free - int(KEPT_FREE * room.total)):
        raise StateFileError(f"the states of its ranks have {needed} bytes, for which there is no room in memory")
    descriptors: list[int] = []
    try:
        for local_rank in range(assign.workers):
            descriptors.append(create_memory(local_rank))
            if local_rank < len(found):
                each = found[local_rank]
                _read(each.path, each.record, descriptors[-1], is_replicated=shared is not None)
    except BaseException as error:
        for descriptor in descriptors:
            os.close(descriptor)
        if isinstance(error, OSError):
            raise StateFileError(str(error)) from error
        raise
    return descriptors


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """A state in a file that its record tells of."""

    path: str
    record: KeptRecord

    @classmethod
    def find(cls, layout: RunLayout, ended: int, name: str, place: str, version: StateVersion) -> _Kept | None:
        """Return the state of this place and version among those that came after an attempt, None if there is none."""
        record = parse_kept_record(find_json(layout.kept_record(ended, name)))
        if record is None or record.place != place or record.version != version:
            return None
        return cls(path=layout.kept_state(ended, name), record=record)

    @classmethod
    def find_of_another_run(
        cls, layout: RunLayout, ended: int, name: str, place: str, version: StateVersion
    ) -> _Kept | None:
        """Return the state of this place and step, in whatever attempt of its own the other run has saved it."""
        record = parse_kept_record(find_json(layout.kept_record(ended, name)))
        if record is None or record.place != place or record.step != version.step:
            return None
        return cls(path=layout.kept_state(ended, name), record=replace(record, attempt=OF_ANOTHER_RUN))


def _read(path: str, record: KeptRecord, descriptor: int, *, is_replicated: bool) -> None:
    """Read a state into the first slot of an empty memory.

    Raises:
        StateFileError: the file is not what its record says.
        OSError: it cannot be read, or there is no memory for it.
    """
    source = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO would wait for its writer
    try:
        if not stat.S_ISREG(os.fstat(source).st_mode):
            raise StateFileError(f"{path} is no file")
        state = SlotState(
            slot=0,
            sequence=1,
            attempt=record.attempt,
            step=record.step,
            length=record.length,
            is_replicated=is_replicated,
            crc=record.crc,
        )
        with fill_slot(map_control(descriptor), descriptor, state) as write:
            crc = _copy(lambda piece, offset: os.preadv(source, [piece], offset), write, record.length)
            if crc != record.crc or os.fstat(source).st_size != record.length:
                raise StateFileError(f"{path} is damaged")
    finally:
        os.close(source)


def _copy(
    read: Callable[[memoryview, int], int], write: Callable[[memoryview, int], object], length: int
) -> int | None:
    """Copy bytes piece by piece; return their checksum, None if there are fewer than `length`."""
    crc, offset, memory = 0, 0, memoryview(bytearray(min(PIECE, length)))
    while offset < length:
        count = read(memory[: length - offset], offset)
        if not count:
            return None
        crc = zlib.crc32(memory[:count], crc)
        write(memory[:count], offset)
        offset += count
    return crc
