"""Reserves disk space for an agent's log, so that its last lines can be written when the disk is full."""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat

ROOM = 64 * 1024  # most agents log less in a whole run
_FALLOC_FL_KEEP_SIZE = 1  # fallocate(2)


def reserve_room(descriptor: int, room: int = ROOM) -> bool:
    """Reserve disk space behind the end of a file, without a change of its size.

    Args:
        descriptor: the descriptor of the file, open for writing.
        room: how many bytes to reserve.

    Returns:
        Whether the space was reserved; false if it is not a regular file or the file system does not support this.
    """
    with contextlib.suppress(OSError):
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            arguments = [ctypes.c_int64(number) for number in (status.st_size, room)]
            return int(ctypes.CDLL(None).fallocate(descriptor, _FALLOC_FL_KEEP_SIZE, *arguments)) == 0
    return False
