"""Maps memory that processes share where the kernel can use huge pages for it, and asks it for these.

A file in memory is mapped with huge pages only if its addresses and its offsets are the same but for whole huge pages,
for which `mmap` of Python gives no means. With huge pages 100 MB are 48 entries of a page table, not 24,000, which each
process that maps them else makes anew and gives back when it ends.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from typing import Any

HUGE = 2 * 1024 * 1024
MADV_POPULATE_READ, MADV_POPULATE_WRITE = 22, 23  # madvise(2), Linux 5.14
_MAP_FIXED = 0x10
_SETTING = "/sys/kernel/mm/transparent_hugepage/shmem_enabled"


def map_aligned(descriptor: int, size: int, offset: int) -> memoryview:
    """Return `size` bytes of a file as memory that can be written to and is shared; it is unmapped with the last view.

    Args:
        descriptor: of a file that has `HUGE` bytes more after these; else the mapping is not aligned.
        size: in bytes, more than 0.
        offset: of the first byte in the file, a multiple of `HUGE`.

    Raises:
        OSError, ValueError: it cannot be mapped, or the file is shorter.
    """
    if os.fstat(descriptor).st_size < offset + size + HUGE:
        return memoryview(mmap.mmap(descriptor, size, offset=offset))
    whole = mmap.mmap(descriptor, size + HUGE, offset=offset)  # it owns all addresses, and unmaps them
    skipped = -address_of(whole) % HUGE
    if skipped and not _map_again(address_of(whole) + skipped, size, descriptor, offset):
        skipped = 0  # the first mapping is as it was
    return memoryview(whole)[skipped : skipped + size]


def address_of(memory: memoryview | mmap.mmap) -> int:
    """Return the address of the first byte of memory that can be written to."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def advise(memory: memoryview, advice: int) -> bool:
    """Call madvise(2) for whole pages of memory; return whether the kernel has done what the advice asks for."""
    return _madvise(address_of(memory), len(memory), advice)


def populate(address: int, size: int) -> None:
    """Have the kernel make the whole pages of private or shared memory at once, as a write to each would one by one.

    A kernel that cannot leaves them to the writes.
    """
    begin, end = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE, (address + size) // mmap.PAGESIZE * mmap.PAGESIZE
    if begin < end:
        _madvise(begin, end - begin, MADV_POPULATE_WRITE)


def fill_with_huge_pages(descriptor: int, size: int, offset: int) -> None:
    """Make the memory behind bytes of a file out of huge pages, where the machine gives them to who asks.

    Where it never does, or to everybody, nothing is made here.

    Args:
        descriptor: of a file in memory that has `HUGE` bytes more after these.
        size: in bytes, a multiple of `HUGE`.
        offset: of the first byte in the file, a multiple of `HUGE`.

    Raises:
        OSError, ValueError: it cannot be mapped.
    """
    if not _is_for_who_asks():
        return
    memory = map_aligned(descriptor, size, offset)
    advise(memory, mmap.MADV_HUGEPAGE)
    for begin in range(0, size, HUGE):  # piece by piece, because a signal waits for the end of a call
        populate(address_of(memory) + begin, HUGE)


@functools.cache
def _is_for_who_asks() -> bool:
    try:
        with open(_SETTING, encoding="ascii", errors="replace") as file:
            return "[advise]" in file.read()
    except OSError:
        return False


def _madvise(address: int, size: int, advice: int) -> bool:
    return bool(_libc().madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), ctypes.c_int(advice)) == 0)


def _map_again(address: int, size: int, descriptor: int, offset: int) -> bool:
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    found = _libc().mmap(
        ctypes.c_void_p(address),
        ctypes.c_size_t(size),
        ctypes.c_int(protection),
        ctypes.c_int(mmap.MAP_SHARED | _MAP_FIXED),
        ctypes.c_int(descriptor),
        ctypes.c_longlong(offset),
    )
    return bool(found == address)


@functools.cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    return libc
