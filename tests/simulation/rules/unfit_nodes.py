"""A run that cannot begin without nodes that cannot take part says which, all of them, and soon.

Whoever mends nodes is not to find one each time: the others have two seconds to say so too, from when the first has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_elastic.rundir.records import RunResultRecord
from tests.simulation.rules.invariants import require

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.world import SimulatedRun

SETTLES_S = 2.0
SOON_S = 0.5  # for the records, on quick disks
CLOSE_S = 0.05  # to the end of that time


class UnfitNodes:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._have_joined = {"node0"}  # which is the first head
        self._joined_at: dict[str, float] = {}  # by node that is not fit
        whats = {fault.what for fault in run.scenario.faults}
        self._is_played = "unfit" in whats and whats <= {"unfit", "never_starts", "starts_late"}
        self._is_played = self._is_played and max(*run.scenario.disk_s, *run.scenario.delays_s) < SOON_S / 10

    def joins(self, agent: Agent) -> None:
        """A head gets the request of an agent to join."""
        self._have_joined.add(agent.name)
        if agent.problem is not None:
            self._joined_at.setdefault(agent.name, self._run.clock.now)

    def ended(self, result: RunResultRecord) -> None:
        """The result is on disk."""
        if not self._is_played or not self._joined_at or result.attempts:
            return
        is_needed = self._run.scenario.min_nodes == self._run.scenario.nodes
        is_so = result.reason == "setup_failed"
        require(is_so or not is_needed, f"nodes that are needed are not fit, and the run ends by {result.reason}")
        if not is_so:
            return
        # One that the run could do without when it said so has left, and is named with those that are still there.
        there = [at for node, at in self._joined_at.items() if self._run.agent(node).is_running]
        settled_at = min(there or self._joined_at.values()) + SETTLES_S
        for node, joined_at in self._joined_at.items():
            is_late = joined_at > settled_at - CLOSE_S
            require(is_late or node in result.cause, f"the result does not name {node}: {result.cause}")
        at, latest = self._run.clock.now, settled_at + SOON_S
        is_early = at < settled_at - CLOSE_S and len(self._have_joined) < self._run.scenario.nodes
        require(
            not is_early, f"the run ends at {at:.2f} s, and others may say until {settled_at:.2f} s that they are unfit"
        )
        require(
            at <= latest, f"the run ends at {at:.2f} s, not by {latest:.2f} s, when its nodes were known to be unfit"
        )
