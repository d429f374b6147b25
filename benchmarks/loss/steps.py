"""What the processes of `training` have stamped: when each was started, and when its first step was done."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


class NotInTimeError(Exception):
    """What was waited for did not happen."""


@dataclass(frozen=True)
class Trained:
    """One process: which rank of how many, its start, and its steps; seconds of the training's clock."""

    rank: int
    world_size: int
    began: float
    steps: tuple[float, ...]


@dataclass(frozen=True)
class WorkerStart:
    """The processes of an attempt: the start of the first, and the first step of the last."""

    began: float
    stepped: float

    @property
    def seconds(self) -> float:
        return self.stepped - self.began


def now() -> float:
    """The training's clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def read(stamps: Path) -> list[Trained]:
    """The processes that have joined a process group so far."""
    found = []
    for path in stamps.glob("*.steps"):
        first, *others = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")] or [""]
        if first:
            began, rank, world_size = first.split()
            found.append(Trained(int(rank), int(world_size), float(began), tuple(map(float, others))))
    return found


def first_start(stamps: Path, ranks: int, after: float) -> WorkerStart | None:
    """The first whole group of so many ranks that was started after a moment and has trained, None if there is none.

    A step is one of all ranks of a group, so those of one group are next to each other by their first step.
    """
    trained = [one for one in read(stamps) if one.began > after and one.world_size == ranks and one.steps]
    group = sorted(trained, key=lambda one: one.steps[0])[:ranks]
    if sorted(one.rank for one in group) != list(range(ranks)):
        return None
    return WorkerStart(min(one.began for one in group), max(one.steps[0] for one in group))


def wait_for_start(
    stamps: Path, ranks: int, *, after: float, within_s: float, story: Callable[[], str] = lambda: ""
) -> WorkerStart:
    """The same, once it is there.

    Raises:
        NotInTimeError: it is not in time; what `story` tells is in the message.
    """
    deadline = time.monotonic() + within_s
    while (found := first_start(stamps, ranks, after)) is None:
        if time.monotonic() > deadline:
            raise NotInTimeError(f"no step of {ranks} ranks within {within_s:g} s\n{story()}")
        time.sleep(0.05)
    return found
