"""Which seeds run which lines of the shipped code, so that an edit of a line is played where it shows.

Theory of operation. Some seeds of each kind are played once on the code as it is, under a trace function, and for each
line that ran it is kept in which. `schedules` then gives an edit seeds of the kinds that ran the line, those that did
before new ones, which come as often as their kind runs it; of kinds of whose runs the rules say much it gives more.
Where no seed ran it (a bound that is read when the module is loaded), every kind takes its turn. What is kept decides
the order alone: every edit gets the same number.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

Reach = Mapping[str, Sequence[tuple[str, int]]]  # by `module:line`, kinds and their seeds


class _Lines:
    """Traces which lines run, in some modules."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = modules  # by the path of the source
        self._left: dict[CodeType, set[int]] = {}

    def ran(self) -> Iterator[str]:
        """The lines that ran since the last call."""
        for code, left in self._left.items():
            for line in _lines_of(code) - left:
                yield f"{self._modules[code.co_filename]}:{line}"
        self._left = {}

    def trace(self, frame: FrameType, event: str, argument: object) -> Any:
        """As `sys.settrace` calls it."""
        code = frame.f_code
        if code.co_filename not in self._modules:
            return None
        left = self._left.get(code)
        if left is None:
            left = self._left[code] = _lines_of(code)
        left.discard(frame.f_lineno)
        return self.trace if left else None


def _lines_of(code: CodeType) -> set[int]:
    return {line for _, _, line in code.co_lines() if line is not None}


def measure(modules: Mapping[str, str], each: int) -> Reach:
    """Plays the first seeds of each kind.

    Args:
        modules: their names, by the path of the source.
        each: how many seeds of each kind.
    """
    from tests.simulation.kinds import KINDS
    from tests.simulation.world import SimulatedRun

    lines, reach = _Lines(modules), dict[str, list[tuple[str, int]]]()
    for kind, make in KINDS.items():
        for seed in range(each):
            run = SimulatedRun(make(seed))
            sys.settrace(lines.trace)
            try:
                run.play()
            finally:
                sys.settrace(None)
            for line in set(lines.ran()):  # a line of two functions, one in the other, ran once
                reach.setdefault(line, []).append((kind, seed))
    return reach


def sources(root: Path, modules: Collection[str]) -> dict[str, str]:
    """The modules' names, by the path of the source."""
    return {str(root / (module.replace(".", "/") + ".py")): module for module in modules}


def schedules(
    reached: Sequence[tuple[str, int]], kinds: Mapping[str, float], each: int, count: int
) -> list[tuple[str, int]]:
    """The seeds that an edit is played with, in order.

    Args:
        reached: those that ran its line.
        kinds: all kinds, with their weights: of a kind of twice the weight twice as many are played.
        each: how many of each kind were tried for that.
        count: how many are wanted.
    """
    ran = dict.fromkeys((kind, seed) for kind, seed in reached)  # each once
    of = {kind: [seed for its, seed in ran if its == kind] for kind in kinds}
    share = {kind: len(seeds) / each for kind, seeds in of.items() if seeds} or dict.fromkeys(kinds, 1.0)
    after = each if reached else 0
    order: list[tuple[float, str, int]] = []
    for kind, part in share.items():
        known, weight = of[kind], kinds[kind]
        order += [((rank + 1) / weight, kind, seed) for rank, seed in enumerate(known)]
        order += [((len(known) + (seed + 1) / part) / weight, kind, after + seed) for seed in range(count)]
    return [(kind, seed) for _, kind, seed in sorted(order, key=lambda item: item[0])][:count]
