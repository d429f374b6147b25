"""Reads the latest samples of nodes, and where each rank was then by its heartbeats.

Theory of operation. Samples carry their own node's clock, which may be minutes off; then a rank would look as many
steps ahead or behind as it makes in that time. The file server's clock is the same for all: it dates the last write to
each file. Where the last sample differs from that by more than `CLOCK_S`, all times of the node are moved by as much.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpc_elastic.rundir.layout import RunLayout
from hpc_elastic.rundir.new_names import open_anew

Line = Mapping[str, Any]
CLOCK_S = 5.0  # a sample may be written so late by a file system that is behind
_END = 32 * 1024  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSeen:
    """The step of a rank at one moment, in Unix seconds; its last heartbeat was `age_s` before."""

    rank: int
    node: str
    step: int
    at: float
    age_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestSamples:
    """The last samples of a node, oldest first; `ahead_s`: how far its clock is ahead of the file server's."""

    lines: tuple[Line, ...]
    ahead_s: float = 0.0


def read_latest(path: str, *, count: int = 7) -> LatestSamples | None:
    """Return the last samples in a file; None if there are none, or it cannot be read."""
    with contextlib.suppress(OSError), open(path, "rb", opener=open_anew) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _END))
        lines = file.read().splitlines()
        found = parse_samples(lines[1 if size > _END else 0 :])[-count:]
        if found:
            ahead_s = found[-1]["time_ns"] / 1e9 - os.fstat(file.fileno()).st_mtime
            return LatestSamples(lines=tuple(found), ahead_s=ahead_s if abs(ahead_s) > CLOCK_S else 0.0)
    return None


def latest_samples(
    layout: RunLayout, nodes: Sequence[str], *, most: int | None = None, turn: int = 0
) -> dict[str, LatestSamples]:
    """Return the last samples of each of these nodes that has some.

    Args:
        layout: the run's.
        nodes: the nodes.
        most: of more nodes than so many only as many are read, evenly chosen.
        turn: which of the even choices; with every next turn comes the next one, until all nodes were read.
    """
    step = 1 if most is None else max(1, -(-len(nodes) // most))
    found = {node: read_latest(layout.samples(node)) for node in nodes[turn % step :: step]}
    return {node: samples for node, samples in found.items() if samples is not None}


def ranks_seen(samples: Mapping[str, LatestSamples], attempt: int, *, last: int = 2) -> list[RankSeen]:
    """Return where each rank with a step was in its node's last samples of an attempt, oldest first."""
    return [
        seen
        for node, latest in samples.items()
        for line in [line for line in latest.lines if line.get("attempt") == attempt][-last:]
        for seen in _ranks_of(line, node, at=line["time_ns"] / 1e9 - latest.ahead_s)
    ]


def parse_samples(lines: Iterable[bytes]) -> list[Line]:
    """Return the samples in lines of a file; torn lines, and those whose time is not later, are left out."""
    found: list[Line] = []
    last = -1
    for line in lines:
        with contextlib.suppress(ValueError, TypeError, RecursionError):
            sample = json.loads(line)
            if isinstance(sample, dict) and isinstance(sample.get("time_ns"), int) and sample["time_ns"] > last:
                last = sample["time_ns"]
                found.append(sample)
    return found


def _ranks_of(line: Line, node: str, *, at: float) -> Iterable[RankSeen]:
    ranks = line.get("ranks")
    for rank in ranks if isinstance(ranks, list) else ():
        if isinstance(rank, dict) and isinstance(rank.get("step"), int) and isinstance(rank.get("rank"), int):
            age = rank.get("age_s")
            yield RankSeen(
                rank=rank["rank"],
                node=node,
                step=rank["step"],
                at=at,
                age_s=float(age) if isinstance(age, (int, float)) else 0.0,
            )
