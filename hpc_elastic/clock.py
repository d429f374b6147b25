"""The clock of leases and deadlines: one for all processes of a machine, which goes on while the machine is suspended.

CLOCK_MONOTONIC stands still then: a node that slept for an hour would take its lease for a fresh one when it wakes
up. Source: clock_gettime(2), CLOCK_BOOTTIME, Linux 2.6.39.
"""

from __future__ import annotations

import time


def _choose() -> int:
    try:
        time.clock_gettime(time.CLOCK_BOOTTIME)
    except OSError:  # a sandbox that does not know it
        return time.CLOCK_MONOTONIC
    return time.CLOCK_BOOTTIME


CLOCK = _choose()


def now() -> float:
    """The moment, in seconds since an arbitrary one of this machine's, as `time.monotonic`."""
    return time.clock_gettime(CLOCK)
