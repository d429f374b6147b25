"""How busy a machine is with what is not the benchmark, so that a reader knows what the figures are worth."""

from __future__ import annotations

import os
import time

import psutil


class Elsewhere:
    """For a `with`: the cores that others used meanwhile. Children count as one's own once they are over."""

    cores = 0.0

    def __enter__(self) -> Elsewhere:
        self._began, self._busy, self._own = time.monotonic(), _busy_s(), _own_s()
        return self

    def __exit__(self, *_: object) -> None:
        elsewhere = (_busy_s() - self._busy) - (_own_s() - self._own)
        self.cores = round(max(0.0, elsewhere) / (time.monotonic() - self._began), 2)


def busy_cores(*, seconds: float = 1.0) -> float:
    """The cores that anybody uses in the next moment: before a measurement, while one's own processes do nothing."""
    began, busy = time.monotonic(), _busy_s()
    time.sleep(seconds)
    return round((_busy_s() - busy) / (time.monotonic() - began), 2)


def _busy_s() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


def _own_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
