"""How an agent dials that has not had a head yet: again and again, after pauses that grow from little to a second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.rules.invariants import require

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.world import SimulatedRun

FIRST_PAUSE_S, LONGEST_PAUSE_S, GROWS = 0.05, 1.0, 1.5
LATE_S = 0.02  # of timers, and of a clock that runs apart from the simulation's


class FirstSearch:
    """Of one agent. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun, agent: Agent) -> None:
        self._agent = agent
        self._are_late = any(fault.what == "late" for fault in run.scenario.faults)
        self._ended_at: float | None = None
        self._pause_s = FIRST_PAUSE_S
        self._works = False  # on the disk, or asks for a name, since the last round

    def works(self) -> None:
        """Between two rounds it does something else."""
        self._works = True

    def begins_round(self, number: int) -> None:
        """It dials: the first of a try comes at once."""
        agent = self._agent
        if number == 0:
            self._pause_s = FIRST_PAUSE_S
        elif self._ended_at is not None and not (agent.process.has_ever_frozen or self._are_late):
            paused_s = agent.now - self._ended_at
            is_so = paused_s >= self._pause_s - LATE_S and (self._works or paused_s <= self._pause_s + LATE_S)
            require(is_so, f"{agent.name} dials again after {paused_s:.3f} s, not {self._pause_s:.3f} s")
        if number > 0:
            self._pause_s = min(LONGEST_PAUSE_S, GROWS * self._pause_s)
        self._works = False

    def ends_round(self) -> None:
        """Nobody has answered."""
        self._ended_at = self._agent.now
