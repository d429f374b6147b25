"""A program that writes a small file, forces it to disk and reads it back: `probe.py DIRECTORY FILE LEAST PATIENCE`.

It runs as a process of its own, because a write to a file system that hangs cannot be interrupted: a thread that does
it would keep the agent from ending. It prints what is wrong, and nothing if all is well. It imports nothing of this
package, so that it starts within some milliseconds.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from collections.abc import Sequence

CONTENT = bytes(range(256)) * 256
AGAIN_AFTER_S = 0.5
# What a shared file system may answer while a server of it fails over, and while others free space.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
PASSING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR})


def find_problem(
    directory: str, name: str, least: int, patience_s: float, *, again_after_s: float = AGAIN_AFTER_S
) -> str:
    """Return what is wrong with a directory, "" if nothing is.

    Args:
        directory: the directory.
        name: the file that is written there, and removed again.
        least: how many bytes must be free; 0: a full file system is no problem of this node, because all share it.
        patience_s: for so long an error that may pass is tried again.
        again_after_s: the pause before each further try.
    """
    until = time.monotonic() + patience_s
    while True:
        try:
            return _try_out(os.path.join(directory, name), directory, least)
        except OSError as error:
            if not least and error.errno in FULL:
                return ""
            if error.errno not in PASSING or time.monotonic() + again_after_s > until:
                return f"{directory} cannot be written: {error.strerror or error}"
        time.sleep(again_after_s)


def _try_out(path: str, directory: str, least: int) -> str:
    found = os.statvfs(directory)
    free = found.f_bavail * found.f_frsize
    if found.f_blocks and free < least:  # some network file systems do not say how large they are
        return f"{directory} has {free / 2**20:.0f} MiB free, expected at least {least / 2**20:.0f} MiB"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        _write(descriptor)
        os.fsync(descriptor)
        content = os.pread(descriptor, len(CONTENT) + 1, 0)
    finally:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            os.unlink(path)
    return "" if content == CONTENT else f"{directory} gives back other data than was written"


def _write(descriptor: int) -> None:
    left = memoryview(CONTENT)
    while left:
        left = left[os.write(descriptor, left) :]


def main(arguments: Sequence[str]) -> int:
    """Print what is wrong with a directory; return 0 if nothing is, else 1."""
    directory, name, least, patience = arguments
    problem = find_problem(directory, name, int(least), float(patience))
    sys.stdout.write(problem)
    return int(bool(problem))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
