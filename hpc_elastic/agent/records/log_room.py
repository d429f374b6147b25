"""Keeps room for an agent's last words on a disk that is full by then."""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat

ROOM = 64 * 1024  # most agents say less in a whole run
_FALLOC_FL_KEEP_SIZE = 1  # fallocate(2)


def reserve_room(descriptor: int, room: int = ROOM) -> bool:
    """Has the file system set space aside behind the end of a file, whose size stays what it is.

    Args:
        descriptor: of the file, open for writing.
        room: so many bytes.

    Returns:
        Whether it did; what is no file, or on a file system that cannot, does without.
    """
    with contextlib.suppress(OSError):
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):
            arguments = [ctypes.c_int64(number) for number in (status.st_size, room)]
            return int(ctypes.CDLL(None).fallocate(descriptor, _FALLOC_FL_KEEP_SIZE, *arguments)) == 0
    return False
