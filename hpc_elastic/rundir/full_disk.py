"""Tells whether a run directory's file system has no space left, and which errors say so."""

from __future__ import annotations

import errno
import os

from hpc_elastic.errors import RunDirectoryError

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_PROBED_BYTES = 4096
_WORDS = tuple(map(os.strerror, _NO_SPACE))
_NO_INODE = "no inode is left"


def is_full(path: str) -> bool:
    """Return whether the file system of a directory has no block or no inode left; a quota is not seen here.

    See `why_refused`.
    """
    return bool(describe_lack(path))


def describe_lack(path: str) -> str:
    """Return what the file system of a directory has none left of, and what to do; empty if it is not full."""
    found = _ask(path)
    if found is None or found.f_blocks == 0:
        return ""
    if lacks_only_inodes(found):
        return (
            f"{_NO_INODE} on the file system of {path}, which cannot hold more than its {found.f_files} files and "
            "folders: delete some"
        )
    has_no_inode = found.f_files > 0 and found.f_favail == 0
    if found.f_bavail == 0 or has_no_inode:
        return f"no space is left on the file system of {path}: free some"
    return ""


def lacks_only_inodes(found: os.statvfs_result) -> bool:
    """Return whether a file system has blocks left, and no inode for another file.

    One that makes inodes out of blocks, such as XFS, has neither when it is full of data.
    """
    return found.f_files > 0 and found.f_favail == 0 and found.f_bavail > 0


def describe_missing_inodes(path: str) -> str:
    """Return that no inode is left where a path that may not exist would be; empty if some are, or nobody knows."""
    folder = os.path.abspath(path)
    while (found := _ask(folder)) is None and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    if found is None or not lacks_only_inodes(found):
        return ""
    return f"{_NO_INODE}, as its file system cannot hold more than its {found.f_files} files and folders"


def _ask(path: str) -> os.statvfs_result | None:
    """Return what a file system says of itself; None if it does not, or can only be read: then it is full by nature."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return None if found.f_flag & os.ST_RDONLY else found


def describe_refusal(folder: str) -> str:
    """Return that a directory takes no small file, though statvfs may see room for it, and what to do; else empty."""
    words = why_refused(folder)
    if not words:
        return ""
    if words == os.strerror(errno.EDQUOT):
        return f"your quota is used up on the file system of {folder}: free some space"
    return f"no space is left on the file system of {folder}: free some"


def why_refused(folder: str) -> str:
    """Return the system's words if a small file cannot be written here for want of space or of quota; else empty.

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
        return os.strerror(error.errno) if error.errno in _NO_SPACE else ""
    return ""


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


def describe_cure(text: str) -> str:
    """Return what frees a full disk, by a text about it that may name inodes."""
    return "delete some of its files" if _NO_INODE in text else "free some space"
