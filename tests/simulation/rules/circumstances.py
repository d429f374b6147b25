"""What a node says of its workers' ends is of their own attempt: it is marked before each one's workers start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_elastic.agent.workers.circumstances import Measured
from hpc_elastic.membership.messages import Assign
from tests.simulation.rules.invariants import require

if TYPE_CHECKING:
    from tests.simulation.agent import Agent


class NodeCircumstances:
    """As `agent.workers.circumstances.Circumstances`, of a node whose kernel says nothing of any end."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._is_marked = False

    def mark(self) -> None:
        self._is_marked = True

    def measure(self, pid: int, exitcode: int, text: str, directory: str = "") -> Measured:
        return Measured()

    def starts(self, assign: Assign) -> None:
        """Workers of an attempt start. Raises BrokenRuleError."""
        what = f"{self._agent.name} starts workers of attempt {assign.attempt}"
        require(self._is_marked, f"{what}, and what its kernel has said of those before counts for them")
        self._is_marked = False
