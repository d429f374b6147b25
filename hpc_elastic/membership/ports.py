"""The ports that the agents of one allocation try, the same sequence on every node."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence


def port_sequence(run: str, job_id: str, port_range: Sequence[int], *, count: int = 16) -> list[int]:
    """Return distinct ports of `port_range` (first and last, both included), drawn from run and job id.

    Returns:
        `count` ports, or all of a smaller range.
    """
    first, last = port_range
    size = last - first + 1
    seed = hashlib.sha256(f"{run}\0{job_id}".encode()).digest()
    start = int.from_bytes(seed[:8], "big") % size
    # A step that shares no factor with the size visits every port once.
    step = int.from_bytes(seed[8:16], "big") % size or 1
    while math.gcd(step, size) != 1:
        step += 1
    return [first + (start + index * step) % size for index in range(min(count, size))]
