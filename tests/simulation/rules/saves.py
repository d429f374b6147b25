"""What ranks that save are owed: a stop for somebody else's failure or death waits for them, a fence does not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tests.simulation.rules.invariants import require
from tests.simulation.scenario import GRACE_S

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.workers import Worker
    from tests.simulation.world import SimulatedRun

GENTLE = frozenset({"kill_worker", "exit_worker", "kill_agent"})  # nobody is silent, and who is dead is known to be


class Saves:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run

    def stops(self, agent: Agent, workers: Iterable[Worker], began: float) -> None:
        """A node's stop that began then is about to kill what is left of these."""
        now = self._run.clock.now
        savers = [worker for worker in workers if worker.is_saving(now) and now < began + GRACE_S]
        require(
            not savers or not self._is_owed(),
            f"{agent.name} kills ranks that save, {now - began:.2f} s after the begin of the stop",
        )

    def _is_owed(self) -> bool:
        """Whether nothing is wrong but workers and agents that are dead, too few to go on, and none of them a head."""
        run = self._run
        heads = {claim.head for claim in run.disk.claims.values()}
        if any(fault.what not in GENTLE for fault in run.scenario.faults) or run.witness.unkillable:
            return False
        dead = [agent for agent in run.agents if not agent.is_running]
        return len(dead) < run.scenario.min_nodes and not any(agent.name in heads for agent in dead)
