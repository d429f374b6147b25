"""What never changes is not asked for again and again: an agent reads each roster once, and each claim a few times.

All agents without a head look for the latest claim each second, and a claim of thousands of nodes is large: what each
of them reads anew every time the file server has to give out as often as there are nodes. An agent knows what it has
read before; only of an attempt that others may claim just now it asks by name, before and after its own claim, each
time that it has become head.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.simulation.rules.invariants import require

if TYPE_CHECKING:
    from tests.simulation.agent import Agent

MOST = {"world.json": 1, "claim.json": 5}  # by the file's name, of who is head once at most
MORE = {"world.json": 0, "claim.json": 2}  # for each further time


class Reads:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self) -> None:
        self._times: Counter[tuple[Agent, str]] = Counter()
        self._headships: Counter[Agent] = Counter()

    def leads(self, agent: Agent) -> None:
        """An agent has become head, and gathers nodes."""
        self._headships[agent] += 1

    def gets(self, agent: Agent, path: str) -> None:
        """An agent has read a file that has content."""
        name = path.rpartition("/")[2]
        if name not in MOST:
            return
        most = MOST[name] + MORE[name] * max(0, self._headships[agent] - 1)
        self._times[agent, path] += 1
        times = self._times[agent, path]
        require(times <= most, f"{agent.name} has read {path} {times} times, which does not change")
