"""Reads the samples of a run's nodes: all of a small file, and of a large one lines that are spread over it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from hpc_elastic.failures.pace import Pace, find_pace
from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.sample_tail import Line, latest_samples, parse_samples, ranks_seen

_SMALL = 64 * 1024
_LONGEST_LINE = 64 * 1024


def read_spread(path: str, count: int) -> list[Line]:
    """Return up to about `count` of the samples in a file, in their order; none if it cannot be read."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size <= _SMALL:
            file.seek(0)
            lines = file.read().splitlines()
            step = max(1, -(-len(lines) // max(count, 1)))
            return parse_samples([*lines[::step], *lines[-1:]])
        chosen = []
        for number in range(count):
            file.seek(size * number // count)
            if number:
                file.readline(_LONGEST_LINE)  # the rest of a line
            chosen.append(file.readline(_LONGEST_LINE))
        return parse_samples(chosen)
    return []


def read_pace(layout: RunLayout, nodes: Sequence[str], attempt: int, *, most: int | None = None) -> Pace:
    """Return the pace of the ranks of an attempt on these nodes, from their latest samples."""
    return find_pace(ranks_seen(latest_samples(layout, nodes, most=most), attempt))
