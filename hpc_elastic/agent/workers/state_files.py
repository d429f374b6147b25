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
from hpc_elastic.rundir.kept_records import find_latest_attempt, find_pinned, parse_kept_record
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.saved_states import find_saved
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
from hpc_elastic.state_memory import KEPT_FREE, SlotState, create_memory, fill_slot, is_held, map_control, slot_offset

PIECE = 1024 * 1024
_Find = Callable[[str, str, str, StateVersion], "_Kept | None"]  # by folder, name of the files, place and version


class StateFileError(Exception):
    """A state could not be copied; the message says what was found."""


class StateGoneError(StateFileError):
    """A state is not in memory any more, or its rank has overwritten it while it was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePart:
    """A state in memory that is to be written: the name of its files, whose it is, and where it is, if it is there.

    `numbers` is the first page of that memory, if a rank may be at work there.
    """

    name: str
    place: str
    descriptor: int
    state: SlotState | None
    numbers: memoryview | None = None


def write_states(layout: RunLayout, flush: Flush, parts: Sequence[StatePart]) -> str:
    """Write states from memory to their files, all at the same time; return a line that says how it went."""
    began = time.monotonic()
    records, errors = write_parts(layout.kept_states(flush.ended), parts)
    if errors:
        return f"step {flush.state.step} cannot be kept for the next allocation: {errors[0]}"
    took = time.monotonic() - began
    size = sum(record.length for record in records.values())
    return f"kept step {flush.state.step} for the next allocation: {size / 1e6:.1f} MB in {took:.1f} s"


def write_parts(
    folder: str, parts: Sequence[StatePart], *, is_wanted: Callable[[], bool] = lambda: True
) -> tuple[dict[str, KeptRecord], list[Exception]]:
    """Write states from memory to files in a folder, all at the same time.

    Args:
        folder: where they go.
        parts: the states.
        is_wanted: returns whether they are still wanted; if not, nothing more is written. Any thread calls it.

    Returns:
        The records of those that are there, by the name of their files; and why others are not.
    """
    outcomes: dict[int, KeptRecord | Exception] = {}

    def write(number: int) -> None:
        try:
            outcomes[number] = _write(folder, parts[number], is_wanted)
        except (StateFileError, RunDirectoryError, OSError) as error:
            outcomes[number] = error
        except Exception as error:  # whatever it is, the end of the run is as it was decided
            outcomes[number] = StateFileError(repr(error))

    # No pool, whose threads the end of the process would wait for, on a file system that hangs for ever.
    threads = [threading.Thread(target=write, args=(number,), daemon=True) for number in range(1, len(parts))]
    with contextlib.suppress(RuntimeError):  # there can be no more threads: what has none is not written
        for thread in threads:
            thread.start()
    write(0)
    for thread in threads:
        if thread.ident is not None:
            thread.join()
    all_outcomes = (outcomes.get(number, StateFileError("its thread has ended")) for number in range(len(parts)))
    named = list(zip((part.name for part in parts), all_outcomes, strict=True))
    records = {name: outcome for name, outcome in named if isinstance(outcome, KeptRecord)}
    return records, [outcome for _, outcome in named if isinstance(outcome, Exception)]


def _write(folder: str, part: StatePart, is_wanted: Callable[[], bool]) -> KeptRecord:
    """Write a state to its file, and then its record, which is returned.

    Raises:
        StateFileError: it is gone, or damaged, or not wanted any more.
        RunDirectoryError: it cannot be written; nothing of it is left.
    """
    name, state = part.name, part.state
    path, record_path = RunLayout.state_in(folder, name), RunLayout.record_in(folder, name)
    if state is None:
        raise StateGoneError(f"the state for {path} is not in memory any more")

    def write(piece: memoryview, _: int) -> None:
        if not is_wanted():
            raise StateFileError("it is not wanted any more")
        write_all(target, piece)

    temporary = os.path.join(folder, f".{name}.{os.urandom(6).hex()}.tmp")
    with file_system_errors(path):
        make_directory(folder)
        target = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        try:
            try:
                crc = _copy(
                    lambda piece, offset: os.preadv(part.descriptor, [piece], slot_offset(state.slot) + offset),
                    write,
                    state.length,
                )
                os.fsync(target)
            finally:
                os.close(target)
            if part.numbers is not None and not is_held(part.numbers, state):
                raise StateGoneError(f"the state for {path} was overwritten in memory")
            if crc is None or crc != (state.crc if state.crc is not None else crc):
                raise StateFileError(f"the state for {path} is damaged in memory")
            rename(temporary, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
    record = KeptRecord(attempt=state.attempt, step=state.step, place=part.place, length=state.length, crc=crc)
    write_json(record_path, to_json(record))
    return record


def read_states(
    layout: RunLayout, assign: Assign, version: StateVersion, most: int, *, other: RunLayout | None = None
) -> list[int]:
    """Read the states of this node's ranks from their files; return the descriptors of new memories, by local rank.

    The caller owns the descriptors. A state that is the same on all ranks is only in the memory of local rank 0.

    Args:
        layout: the run directory.
        assign: this node's part of the world.
        version: which state.
        most: how many bytes may be read.
        other: the run with whose state this one begins, if the files are there. Only those count that it had when this
            run began: it may have saved the same step in another attempt since.

    Raises:
        StateFileError: a state is not there, is damaged, or there is no room for it.
        RunDirectoryError: a file cannot be read.
    """
    found: list[_Kept] = []
    own = [layout.kept_states(each) for each in (assign.attempt - 1, *reversed(list_numbers(layout.memory)))]
    find: _Find = _Kept.find
    folders = [*own, *_saves(layout)]
    if other is not None:
        find, folders = _find_pinned(layout, version), [*_saves(other), other.kept_states(find_latest_attempt(other))]
    for folder in dict.fromkeys(folders):
        shared = find(folder, layout.kept_of_all(assign.role), shared_place(assign.role), version)
        ranks = range(assign.first_rank, assign.first_rank + assign.workers)
        found = (
            [shared]
            if shared is not None
            else [
                each
                for rank, place in zip(ranks, rank_places(assign), strict=True)
                if (each := find(folder, layout.kept_of_rank(rank), place, version)) is not None
            ]
        )
        if shared is not None or len(found) == assign.workers:
            break
    else:
        has_not = f"{layout.memory} has not" if other is None else f"{other.memory} no longer has"
        raise StateFileError(f"{has_not} all of it")
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


def _saves(layout: RunLayout) -> list[str]:
    """Return the folder of the newest save that a person has asked for, if there is one."""
    saved = find_saved(layout)
    return [] if saved is None else [layout.saved_states(saved.name)]


def _find_pinned(layout: RunLayout, version: StateVersion) -> _Find:
    """Return what finds the files of another run with which this run at `layout` begins."""
    named = (find_pinned(layout, ended, version.step) for ended in reversed(list_numbers(layout.memory)))
    pinned = next(filter(None, named), {})

    def find(folder: str, name: str, place: str, _: StateVersion) -> _Kept | None:
        record, wanted = parse_kept_record(find_json(RunLayout.record_in(folder, name))), pinned.get(name)
        if record is None or wanted is None or wanted.place != place:
            return None
        found = replace(record, attempt=OF_ANOTHER_RUN)  # in whatever attempt of its own the other run has saved it
        return _Kept(path=RunLayout.state_in(folder, name), record=found) if found == wanted else None

    return find


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """A state in a file that its record tells of."""

    path: str
    record: KeptRecord

    @classmethod
    def find(cls, folder: str, name: str, place: str, version: StateVersion) -> _Kept | None:
        """Return the state of this place and version in a folder, None if there is none."""
        record = parse_kept_record(find_json(RunLayout.record_in(folder, name)))
        if record is None or record.place != place or record.version != version:
            return None
        return cls(path=RunLayout.state_in(folder, name), record=record)


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
