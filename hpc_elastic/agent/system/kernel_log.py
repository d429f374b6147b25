"""Reads the kernel's log (/dev/kmsg), which most nodes show to root only: then there is nothing to read."""

from __future__ import annotations

import os
from collections.abc import Iterator

MOST_RECORDS = 50_000


def read_kernel_log(root: str = "", *, after: int = -1) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each record that is there now, from the oldest on.

    Source: Documentation/ABI/testing/dev-kmsg of the kernel.

    Args:
        root: the folder in which `dev/kmsg` is looked for.
        after: records up to this number are left out.
    """
    try:
        log = os.open(f"{root}/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
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
            number = head.split(",")[1] if head.count(",") >= 2 else ""
            if not number.isdecimal() or int(number) > after:
                yield int(number) if number.isdecimal() else after, text or head
    finally:
        os.close(log)
