"""The memory of a slot: it is taken in parts, as long as there is room, and given back."""

from __future__ import annotations

import errno
import mmap
import os
import resource
from collections.abc import Iterator

import pytest

from hpc_elastic.cgroup_memory import MemoryRoom
from hpc_elastic.state_memory import (
    ALLOCATED,
    GROWS_BY,
    KEPT_FREE,
    SLOTS,
    bytes_taken,
    create_memory,
    free_slot,
    map_control,
    reserve_slot,
    slot_header,
)

MIB = 1 << 20
TOTAL = 100 * MIB


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = create_memory(0)
    yield descriptor
    os.close(descriptor)


class Room:
    """What is free, and less of it each time that it is looked up."""

    def __init__(self, free: int, less: int) -> None:
        self.free, self.less = free, less

    def __call__(self) -> MemoryRoom:
        self.free -= self.less
        return MemoryRoom(total=TOTAL, free=self.free)


def test_a_slot_is_as_it_was_if_others_take_the_memory_meanwhile(memory: int) -> None:
    numbers = map_control(memory)
    reserve_slot(numbers, memory, 1, GROWS_BY)
    with pytest.raises(OSError, match=r"1\.0 MiB of 100 MiB are free") as found:
        reserve_slot(numbers, memory, 1, 10 * GROWS_BY, Room(int(KEPT_FREE * TOTAL) + 4 * MIB, MIB))
    assert found.value.errno == errno.ENOMEM
    assert (slot_header(numbers, 1)[ALLOCATED], bytes_taken(memory)) == (GROWS_BY, GROWS_BY)


def test_no_room_is_asked_for_that_a_slot_has_already(memory: int) -> None:
    numbers = map_control(memory)
    reserve_slot(numbers, memory, 0, 3 * GROWS_BY)
    reserve_slot(numbers, memory, 0, 3 * GROWS_BY, Room(0, MIB))
    reserve_slot(numbers, memory, 0, GROWS_BY, Room(0, MIB))
    assert slot_header(numbers, 0)[ALLOCATED] == 3 * GROWS_BY


def test_memory_is_given_back_by_a_process_with_little_room_for_mappings(memory: int) -> None:
    numbers = map_control(memory)
    reserve_slot(numbers, memory, 0, 96 * MIB)
    pid = os.fork()
    if not pid:
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * mmap.PAGESIZE
        resource.setrlimit(resource.RLIMIT_AS, (used + 64 * MIB, used + 64 * MIB))
        free_slot(numbers, memory, 0)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert bytes_taken(memory) == 0


@pytest.mark.parametrize("slot", range(SLOTS))
def test_a_slot_that_is_freed_takes_none_of_the_others_along(slot: int, memory: int) -> None:
    numbers = map_control(memory)
    for each in range(SLOTS):
        if each != slot:
            reserve_slot(numbers, memory, each, GROWS_BY)
    free_slot(numbers, memory, slot)  # it has nothing
    assert bytes_taken(memory) == (SLOTS - 1) * GROWS_BY
    reserve_slot(numbers, memory, slot, 2 * GROWS_BY)
    free_slot(numbers, memory, slot)
    assert bytes_taken(memory) == (SLOTS - 1) * GROWS_BY
