"""When a node's health checks run, which cost it something: for a cause, and each minute while it is unhealthy.

The causes are the start of its agent, the loss of a head that may live, and a failure that may be the node's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_elastic.membership.messages import StopManner
from tests.simulation.rules.invariants import require

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.world import SimulatedRun

AGAIN_S = 60.0  # while a node is unhealthy
TAKE_S = 2.0  # at most
LATE_S = 0.5


class Examined:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._cut_off: dict[Agent, float] = {}
        self._again: dict[Agent, float] = {}  # when each was examined last because it was unhealthy

    def is_cut_off(self, agent: Agent, *, is_dead: bool) -> None:
        """An agent has lost its head, which is dead or may live."""
        if not is_dead:
            self._cut_off[agent] = self._run.clock.now

    def examines(self, agent: Agent) -> None:
        """The checks of a node begin."""
        now = self._run.clock.now
        self._check_late(agent)
        stop = agent.part.member._stopping if hasattr(agent, "part") else None
        is_restart = stop is not None and stop.manner is StopManner.RESTART
        is_cut_off = now - self._cut_off.get(agent, -AGAIN_S) < LATE_S
        if not hasattr(agent, "part") or is_restart or is_cut_off or agent.process.has_ever_frozen:
            return
        require(agent.found_at is not None, f"{agent.name} is well, and is examined again at {now:.1f} s for no cause")
        passed_s = now - self._again.get(agent, -AGAIN_S)
        self._again[agent] = now
        require(passed_s >= AGAIN_S - LATE_S, f"{agent.name} is examined again after {passed_s:.1f} s")

    def watch(self) -> None:
        """From time to time."""
        for agent in self._run.everybody:
            if agent.is_running and agent.is_examined:
                self._check_late(agent)

    def _check_late(self, agent: Agent) -> None:
        """A node that is unhealthy is examined again, for it may get well."""
        if agent.found_at is None or agent.process.has_ever_frozen:
            return
        waited_s = self._run.clock.now - max(agent.examined_at)
        most_s = AGAIN_S + TAKE_S + LATE_S
        require(waited_s <= most_s, f"{agent.name} is unhealthy, and was not examined for {waited_s:.1f} s")
