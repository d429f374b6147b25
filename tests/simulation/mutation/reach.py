"""Which seeds run which lines of the shipped code, so that an edit of a line is played where it shows.

Theory of operation. Some seeds of each kind are played once on the code as it is, under a trace function, and for each
line that ran it is kept in which. Lines that few of them ran are looked for in more seeds, and those lines alone: then
few functions are traced, and it costs little more than to play. Those that none ran are looked for in many more. What
is kept decides with which schedules an edit is played (`aimed`), and not with how many.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.scenario import Scenario

Reach = Mapping[str, Sequence[tuple[str, int]]]  # by `module:line`, kinds and their seeds
ENOUGH = 60  # seeds that run a line


class _Lines:
    """Traces which lines run, in some modules; a line that enough seeds have run is not looked for any more."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = modules  # by the path of the source
        self._known: set[str] = set()
        self._wanted: dict[CodeType, frozenset[int]] = {}
        self._left: dict[CodeType, set[int]] = {}

    def knows(self, lines: Iterable[str]) -> None:
        """Enough seeds have run these."""
        self._known.update(lines)
        self._wanted = {}

    def ran(self) -> Iterator[str]:
        """The lines that ran since the last call."""
        for code, left in self._left.items():
            for line in self._wanted[code] - left:
                yield f"{self._modules[code.co_filename]}:{line}"
        self._left = {}

    def forget(self) -> None:
        """Those that ran since the last call are none."""
        self._left = {}

    def trace(self, frame: FrameType, event: str, argument: object) -> Any:
        """As `sys.settrace` calls it."""
        code = frame.f_code
        if code.co_filename not in self._modules:
            return None
        left = self._left.get(code)
        if left is None:
            left = self._left[code] = set(self._wanted_in(code))
        left.discard(frame.f_lineno)
        return self.trace if left else None

    def _wanted_in(self, code: CodeType) -> frozenset[int]:
        wanted = self._wanted.get(code)
        if wanted is None:
            module = self._modules[code.co_filename]
            lines = (line for line in _lines_of(code) if f"{module}:{line}" not in self._known)
            wanted = self._wanted[code] = frozenset(lines)
        return wanted


def _lines_of(code: CodeType) -> set[int]:
    return {line for _, _, line in code.co_lines() if line is not None}


def measure(modules: Mapping[str, str], each: int, more: Mapping[str, int], rarely: Mapping[str, int]) -> Reach:
    """Plays the first seeds of each kind.

    Args:
        modules: their names, by the path of the source.
        each: how many seeds of each kind.
        more: of each kind, how many after them, to look for lines that few of these have run.
        rarely: of each kind, how many after those, to look for lines that none has run.
    """
    from tests.simulation.draws.kinds import KINDS

    lines, reach = _Lines(modules), dict[str, list[tuple[str, int]]]()
    first = dict.fromkeys(KINDS, 0)
    for counts, enough in ((dict.fromkeys(KINDS, each), None), (more, ENOUGH), (rarely, 1)):
        for kind in KINDS:
            if enough is not None:
                lines.knows(line for line, ran in reach.items() if len(ran) >= enough)
            for seed in range(first[kind], first[kind] + counts.get(kind, 0)):
                for line in _ran(lines, KINDS[kind](seed)):
                    reach.setdefault(line, []).append((kind, seed))
            first[kind] += counts.get(kind, 0)
    return reach


def _ran(lines: _Lines, scenario: Scenario) -> set[str]:
    """The lines that a run has run; none if it broke a rule, since such a schedule can say nothing of an edit."""
    from tests.simulation.rules.invariants import BrokenRuleError
    from tests.simulation.world import SimulatedRun

    run = SimulatedRun(scenario)
    sys.settrace(lines.trace)
    try:
        run.play()
    except BrokenRuleError:
        lines.forget()
        return set()
    finally:
        sys.settrace(None)
    return set(lines.ran())  # a line of two functions, one in the other, ran once


def sources(root: Path, modules: Collection[str]) -> dict[str, str]:
    """The modules' names, by the path of the source."""
    return {str(root / (module.replace(".", "/") + ".py")): module for module in modules}
