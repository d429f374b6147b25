"""The clock of leases and deadlines, which all processes of a machine share and which counts while it is suspended.

CLOCK_MONOTONIC stands still during a suspend: a node that slept for an hour would take its lease for a fresh one when
it wakes up. Source: clock_gettime(2), CLOCK_BOOTTIME, Linux 2.6.39.
"""

from __future__ import annotations

import time


def _choose() -> int:
    try:
        time.clock_gettime(time.CLOCK_BOOTTIME)
    except OSError:  # a sandbox without this clock
        return time.CLOCK_MONOTONIC
    return time.CLOCK_BOOTTIME


CLOCK = _choose()


def now() -> float:
    """Return the current time, in seconds since an arbitrary moment of this machine, as `time.monotonic` does."""
    return time.clock_gettime(CLOCK)
