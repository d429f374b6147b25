"""What the processes of `training` have stamped, and the first step of a whole group of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.loss.steps import NotInTimeError

LOOKS_EVERY_S = 0.02


@dataclass(frozen=True)
class Trained:
    """One process that has trained: where, which rank of how many, and its moments by name, in seconds."""

    node: str
    pid: int  # on that node
    rank: int
    world_size: int
    moments: Mapping[str, float]


@dataclass(frozen=True)
class Group:
    """The processes of one attempt, by rank; each has made a step."""

    processes: tuple[Trained, ...]

    def last(self, moment: str) -> float:
        """When the last of them was there."""
        return max(one.moments[moment] for one in self.processes)

    def first(self, moment: str) -> float:
        """When the first of them was there."""
        return min(one.moments[moment] for one in self.processes)


def now() -> float:
    """The training's clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def parse(name: str, text: str) -> Trained | None:
    """A file of stamps; None without the first step. The last line may be torn."""
    lines = [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]
    moments = {line[0]: float(line[1]) for line in lines[1:]}
    if "stepped" not in moments:
        return None
    node, pid, _ = name.removesuffix(".moments").rsplit("-", 2)
    rank, world_size = map(int, lines[0])
    return Trained(node, int(pid), rank, world_size, moments)


class Stamps:
    """A folder of stamps; each group is found once."""

    def __init__(self, folder: Path, ranks: int) -> None:
        folder.mkdir()
        self.folder = folder
        self._ranks = ranks
        self._seen: set[str] = set()

    def next_group(self, within_s: float, *, story: Callable[[], str] = lambda: "") -> Group:
        """The next whole group that makes a step.

        Raises:
            NotInTimeError: it does not in time; what `story` tells is in the message.
        """
        deadline = time.monotonic() + within_s
        while True:
            found = {path: trained for path in self._unseen() if (trained := parse(path.name, path.read_text()))}
            if (group := newest_group(found.values(), self._ranks)) is not None:
                self._seen.update(path.name for path in found)
                return group
            if time.monotonic() > deadline:
                raise NotInTimeError(f"no step of {self._ranks} ranks within {within_s:g} s\n{story()}")
            time.sleep(LOOKS_EVERY_S)

    def raised(self, trained: Trained) -> float:
        """When a process of a group raised; it has ended since.

        Raises:
            NotInTimeError: it ended in another way.
        """
        (path,) = self.folder.glob(f"{trained.node}-{trained.pid}-{trained.moments['first_line']}.moments")
        again = parse(path.name, path.read_text())
        if again is None or "raised" not in again.moments:
            raise NotInTimeError(f"rank {trained.rank} ended and has not raised")
        return again.moments["raised"]

    def _unseen(self) -> list[Path]:
        return [path for path in self.folder.glob("*.moments") if path.name not in self._seen]


def newest_group(found: Iterable[Trained], ranks: int) -> Group | None:
    """The newest process of each rank, if they are of one attempt: all of it join before one of it makes a step."""
    newest: dict[int, Trained] = {}
    for one in sorted(found, key=lambda one: one.moments["stepped"]):
        if one.world_size == ranks:
            newest[one.rank] = one
    if sorted(newest) != list(range(ranks)):
        return None
    group = Group(tuple(newest[rank] for rank in range(ranks)))
    return group if group.last("joined") <= group.first("stepped") else None
