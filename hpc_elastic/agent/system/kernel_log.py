"""Reads the kernel's log (/dev/kmsg), which most nodes show to root only: then there is nothing to read.

Source: Documentation/ABI/testing/dev-kmsg of the kernel.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterator

MOST_RECORDS = 50_000


def read_kernel_log(root: str = "") -> Iterator[str]:
    """Yield the text of each record that is there now, from the oldest on.

    Args:
        root: the folder in which `dev/kmsg` is looked for.
    """
    log = _open(root)
    if log is None:
        return
    try:
        yield from _read(log)
    finally:
        os.close(log)


class KernelLogEnd:
    """The end of the kernel's log: the records that have come since `skip`. The records before it are never read.

    Args:
        root: the folder in which `dev/kmsg` is looked for.
    """

    def __init__(self, root: str = "") -> None:
        self._log = _open(root)
        if self._log is not None:
            weakref.finalize(self, os.close, self._log)

    def skip(self) -> None:
        """Pass over all records that are there now."""
        if self._log is not None:
            with contextlib.suppress(OSError):
                os.lseek(self._log, 0, os.SEEK_END)

    def read(self) -> Iterator[str]:
        """Yield the text of each record that has come since the last call of `skip` or `read`."""
        if self._log is not None:
            yield from _read(self._log)


def _open(root: str) -> int | None:
    with contextlib.suppress(OSError):
        return os.open(f"{root}/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    return None


def _read(log: int) -> Iterator[str]:
    for _ in range(MOST_RECORDS):
        try:
            record = os.read(log, 8192)
        except BrokenPipeError:  # overwritten meanwhile; the next one can be read
            continue
        except OSError:  # EAGAIN: that was the last one
            return
        if not record:
            return
        head, _, text = record.decode("utf-8", "replace").partition(";")
        yield text or head
