"""Memory in a file that is mapped where huge pages are possible: its content, its size, and when it is unmapped."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_elastic import aligned_memory, state_memory
from hpc_elastic.aligned_memory import HUGE, address_of, advise, map_aligned, populate

OFFSET = 1 << 40
SIZE = 4 * HUGE
# In a folder of its own whose memory is in huge pages for who asks, as where `shmem_enabled` is `advise`.
FOR_WHO_ASKS = """
import os, re, sys
from hpc_elastic import aligned_memory
from hpc_elastic.aligned_memory import HUGE, fill_with_huge_pages, map_aligned
aligned_memory._SETTING = os.path.join(sys.argv[1], "setting")
open(aligned_memory._SETTING, "w").write("always within_size [advise] never deny force\\n")
file = os.open(os.path.join(sys.argv[1], "memory"), os.O_RDWR | os.O_CREAT)
os.ftruncate(file, (1 << 40) + 5 * HUGE)
fill_with_huge_pages(file, 4 * HUGE, 1 << 40)
memory = map_aligned(file, 4 * HUGE, 1 << 40)
memory[0] = memory[HUGE] = memory[2 * HUGE] = memory[3 * HUGE] = 1
print(os.fstat(file).st_blocks * 512 // HUGE)
print(sum(map(int, re.findall("ShmemPmdMapped: *([0-9]+) kB", open("/proc/self/smaps").read()))) * 1024 // HUGE)
"""


@pytest.fixture
def file() -> Iterator[int]:
    descriptor = os.memfd_create("test")
    os.ftruncate(descriptor, OFFSET + SIZE + HUGE)
    yield descriptor
    os.close(descriptor)


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count("/memfd:test")


def test_a_mapping_is_aligned_and_shares_the_bytes_of_the_file(file: int) -> None:
    os.pwrite(file, b"before", OFFSET)
    memory = map_aligned(file, SIZE, OFFSET)
    assert (address_of(memory) % HUGE, len(memory)) == (0, SIZE)
    assert bytes(memory[:6]) == b"before"
    memory[SIZE - 5 :] = b"after"
    assert os.pread(file, 5, OFFSET + SIZE - 5) == b"after"


def test_a_mapping_ends_with_its_last_view(file: int) -> None:
    memory = map_aligned(file, SIZE, OFFSET)
    part = memory[:10]
    del memory
    assert mappings() > 0
    part[:3] = b"abc"
    del part
    assert mappings() == 0


def test_a_file_without_room_behind_is_mapped_as_it_is(file: int) -> None:
    memory = map_aligned(file, SIZE + HUGE, OFFSET)
    memory[-1] = 7
    assert os.pread(file, 1, OFFSET + SIZE + HUGE - 1) == b"\x07"
    with pytest.raises(ValueError, match="greater than file size"):
        map_aligned(file, SIZE + 2 * HUGE, OFFSET)


def test_a_mapping_that_cannot_be_put_in_place_is_the_unaligned_one(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aligned_memory, "_map_again", lambda *_: False)
    memory = map_aligned(file, SIZE, OFFSET)
    memory[:3] = b"abc"
    assert os.pread(file, 3, OFFSET) == b"abc"


def test_new_memory_is_made_at_once_and_not_beyond_its_whole_pages() -> None:
    with mmap.mmap(-1, 8 * mmap.PAGESIZE) as memory:
        if not advise(memoryview(memory)[: mmap.PAGESIZE], aligned_memory.MADV_POPULATE_WRITE):
            pytest.skip("this kernel has no MADV_POPULATE_WRITE")
        populate(address_of(memory) + 2 * mmap.PAGESIZE - 10, 3 * mmap.PAGESIZE)
        resident = (ctypes.c_ubyte * 8)()
        address = ctypes.c_void_p(address_of(memory))
        assert ctypes.CDLL(None).mincore(address, ctypes.c_size_t(len(memory)), resident) == 0
    assert [page & 1 for page in resident] == [1, 0, 1, 1, 0, 0, 0, 0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system")
def test_memory_is_in_huge_pages_where_the_machine_gives_them_to_who_asks(tmp_path: Path) -> None:
    mount = 'mount -t tmpfs -o huge=advise tmpfs "$0" && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", mount, str(tmp_path), sys.executable, "-c", FOR_WHO_ASKS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if "mount" in done.stderr:
        pytest.skip(f"no such file system here: {done.stderr.strip()}")
    assert done.stderr == ""
    made, mapped = map(int, done.stdout.split())
    assert made == 4
    assert mapped > 0 or not has_huge_pages()  # how many depends on how scattered the machine's free memory is


def has_huge_pages() -> bool:
    """Whether some zone of the machine has free memory in one piece for a huge page of 512 small ones."""
    zones = Path("/proc/buddyinfo").read_text().splitlines()
    return any(int(free) for zone in zones for free in zone.split()[4 + 9 :])


def test_a_slot_takes_as_much_memory_as_it_has_and_can_be_mapped_aligned() -> None:
    descriptor = state_memory.create_memory(0)
    try:
        numbers = state_memory.map_control(descriptor)
        state_memory.reserve_slot(numbers, descriptor, 1, HUGE)
        assert os.fstat(descriptor).st_blocks * 512 in (HUGE, HUGE + state_memory.CONTROL_BYTES)
        assert address_of(map_aligned(descriptor, HUGE, state_memory.slot_offset(1))) % HUGE == 0
        state_memory.reserve_slot(numbers, descriptor, 1, 3 * HUGE)
        assert os.fstat(descriptor).st_blocks * 512 in (3 * HUGE, 3 * HUGE + state_memory.CONTROL_BYTES)
    finally:
        os.close(descriptor)
