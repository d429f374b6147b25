"""Wakes a process at a time of the boot clock, even if its machine was suspended at that time.

The timeout of a wait counts by CLOCK_MONOTONIC, which stands still during a suspend: what was left of the timeout is
still left when the machine wakes up. Source: timerfd_create(2), Linux 2.6.25.
"""

from __future__ import annotations

import contextlib
import ctypes
import os

from hpc_elastic.clock import CLOCK

_FLAGS = 0o4000 | 0o2000000  # TFD_NONBLOCK, TFD_CLOEXEC
_ABSOLUTE = 1  # TFD_TIMER_ABSTIME
_SOONEST_S = 1e-9  # to timerfd_settime, 0 means never


class _Times(ctypes.Structure):
    """`struct itimerspec` of timerfd_settime(2)."""

    _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "at_s", "at_ns")]


class Alarm:
    """A timer descriptor that becomes readable at a set time; `descriptors` is empty if the kernel refuses one."""

    def __init__(self) -> None:
        self.descriptors: list[int] = []
        with contextlib.suppress(OSError, AttributeError):
            self._libc = ctypes.CDLL(None, use_errno=True)
            descriptor = self._libc.timerfd_create(CLOCK, _FLAGS)  # os.timerfd_create is Python 3.13's
            if descriptor >= 0:
                self.descriptors = [descriptor]

    def set(self, moment: float) -> None:
        """Set the time of the alarm, in place of the earlier one; `inf` is never. Not readable until that time."""
        at = 0.0 if moment == float("inf") else max(moment, _SOONEST_S)
        times = _Times(0, 0, int(at), int(at % 1 * 1e9))
        for descriptor in self.descriptors:
            self._libc.timerfd_settime(descriptor, _ABSOLUTE, ctypes.byref(times), None)

    def close(self) -> None:
        """Close the descriptor."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []
