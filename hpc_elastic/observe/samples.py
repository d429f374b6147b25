"""Reads the samples of a run's nodes: all of a small file, and of a large one lines that are spread over it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hpc_elastic.observe.slow_ranks import RankSeen
from hpc_elastic.rundir.layout import RunLayout

Line = Mapping[str, Any]
_SMALL = 64 * 1024
_LONGEST_LINE = 64 * 1024
_END = 32 * 1024


def read_spread(path: str, count: int) -> list[Line]:
    """Return up to about `count` of the samples in a file, in their order; none if it cannot be read."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size <= _SMALL:
            file.seek(0)
            lines = file.read().splitlines()
            step = max(1, -(-len(lines) // max(count, 1)))
            return _parse([*lines[::step], *lines[-1:]])
        chosen = []
        for number in range(count):
            file.seek(size * number // count)
            if number:
                file.readline(_LONGEST_LINE)  # the rest of a line
            chosen.append(file.readline(_LONGEST_LINE))
        return _parse(chosen)
    return []


def read_latest(path: str, *, count: int = 7) -> list[Line]:
    """Return the last samples in a file, in their order; none if it cannot be read."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _END))
        lines = file.read().splitlines()
        return _parse(lines[1 if size > _END else 0 :])[-count:]
    return []


class LatestSamples:
    """The latest samples of all nodes, read again and again."""

    def __init__(self, layout: RunLayout) -> None:
        self._layout = layout

    def read(self, nodes: Iterable[str]) -> dict[str, list[Line]]:
        """Return the last samples of each of these nodes that has some."""
        found = {node: read_latest(self._layout.samples(node)) for node in nodes}
        return {node: lines for node, lines in found.items() if lines}


def ranks_seen(samples: Mapping[str, Sequence[Line]], attempt: int) -> list[RankSeen]:
    """Return where each rank with a step was in its node's last two samples of an attempt, oldest first."""
    seen = []
    for node, lines in samples.items():
        for line in [line for line in lines if line.get("attempt") == attempt][-2:]:
            for rank in line.get("ranks") or ():
                if isinstance(rank, dict) and isinstance(rank.get("step"), int) and isinstance(rank.get("rank"), int):
                    age = rank.get("age_s")
                    seen.append(
                        RankSeen(
                            rank=rank["rank"],
                            node=node,
                            step=rank["step"],
                            at=line["time_ns"] / 1e9,
                            age_s=float(age) if isinstance(age, (int, float)) else 0.0,
                        )
                    )
    return seen


def _parse(lines: Iterable[bytes]) -> list[Line]:
    found: list[Line] = []
    last = -1
    for line in lines:
        with contextlib.suppress(ValueError, TypeError):
            sample = json.loads(line)
            if isinstance(sample, dict) and isinstance(sample.get("time_ns"), int) and sample["time_ns"] > last:
                last = sample["time_ns"]
                found.append(sample)
    return found
