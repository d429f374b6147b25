"""Puts this process's memory into huge pages, so that the kernel copies few page table entries at a fork."""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Callable

HUGE = 2 * 1024 * 1024
_MADV_COLLAPSE = 25  # madvise(2), Linux 6.1


def collapse_memory(*, is_interrupted: Callable[[], bool] = lambda: False) -> int:
    """Collapse private memory into huge pages, whatever the machine's setting for them is.

    With torch imported that is 180 MiB and takes half a second at worst; a fork then takes a fourth of the time.
    Running forks keep the old pages that they share with this process: until they end, that memory is used twice.

    Args:
        is_interrupted: called before each page; whether to stop and leave the rest as it is.

    Returns:
        How many bytes were collapsed; 0 on a kernel that cannot.
    """
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    collapsed = 0
    for start, end in _private_memory():
        for address in range(start, end, HUGE):  # one by one: a failure ends a call
            if is_interrupted():
                return collapsed
            if madvise(ctypes.c_void_p(address), ctypes.c_size_t(HUGE), _MADV_COLLAPSE) == 0:
                collapsed += HUGE
            elif ctypes.get_errno() == errno.EINVAL:
                break  # the whole region, or the kernel, cannot
    return collapsed


def _private_memory() -> list[tuple[int, int]]:
    """Return the heap and other anonymous writable regions, cut to whole huge pages."""
    regions = []
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            span, mode, _, _, inode, *name = line.split(maxsplit=5)
            if mode != "rw-p" or inode != "0" or (name and name[0].startswith("[stack")):
                continue
            start, end = (int(part, 16) for part in span.split("-"))
            start, end = -(-start // HUGE) * HUGE, end // HUGE * HUGE
            if start < end:
                regions.append((start, end))
    return regions
