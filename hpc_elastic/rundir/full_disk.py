"""Tells whether a run directory's file system has no space left, and which errors say so."""

from __future__ import annotations

import errno
import os

from hpc_elastic.errors import RunDirectoryError

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_PROBED_BYTES = 4096
_WORDS = tuple(map(os.strerror, _NO_SPACE))


def is_full(path: str) -> bool:
    """Return whether the file system of a directory has no block or no inode left; a quota is not seen here.

    See `refuses_to_write`.
    """
    try:
        found = os.statvfs(path)
    except OSError:
        return False
    has_no_inode = found.f_files > 0 and found.f_favail == 0
    is_writable = not found.f_flag & os.ST_RDONLY  # one that can only be read is full by its nature
    return is_writable and found.f_blocks > 0 and (found.f_bavail == 0 or has_no_inode)


def refuses_to_write(folder: str) -> bool:
    """Return whether a small file cannot be written here for want of space, or of what is left of a quota.

    A quota shows at a write, and over NFS when the file is closed. That this user may not write here is no such reason.
    """
    path = os.path.join(folder, f".room.{os.urandom(6).hex()}.tmp")
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, bytes(_PROBED_BYTES))
        finally:
            try:
                os.close(descriptor)
            finally:
                os.unlink(path)
    except OSError as error:
        return error.errno in _NO_SPACE
    return False


def is_for_want_of_space(error: RunDirectoryError) -> bool:
    """Return whether something could not be written because the disk is full, or a quota used up."""
    return bool(why_no_space(error))


def why_no_space(error: RunDirectoryError) -> str:
    """Return the system's words for a full disk or a used up quota; empty if an error has another cause."""
    cause = error.__cause__
    return os.strerror(cause.errno) if isinstance(cause, OSError) and cause.errno in _NO_SPACE else ""


def tells_of_no_space(text: str) -> bool:
    """Return whether a line says that a disk is full, or a quota used up."""
    return any(words in text for words in _WORDS)
