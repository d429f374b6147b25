"""Disks that are busy with what can wait: logs of events, samples, records for people.

What a restart needs goes before that: the record of the failure, the look for progress, the one at what the stopped
workers have written, and the claim each wait for the one piece of work that is under way, and for nothing that waits as
they do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_elastic.rundir.records import AttemptClaim
from tests.simulation.rules.invariants import require
from tests.simulation.scenario import Fault

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.world import SimulatedRun

PIECE_S = 0.5
URGENT = 4  # pieces of work that a restart needs, one after the other
SOON_S = 0.5


class Busy:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run

    def happen(self, agent: Agent, fault: Fault) -> None:
        """So much work is handed to the thread of an agent, in pieces."""
        for _ in range(round(fault.lasts_s / PIECE_S)):
            agent.disk.best_effort(lambda: agent.disk.sleep(PIECE_S))

    def claimed(self, claim: AttemptClaim, before: AttemptClaim | None) -> None:
        """A claim is on disk."""
        if not self._run.scenario.is_busy or before is None:
            return
        failed_at = self._run.scenario.faults[-1].at
        latest = failed_at + URGENT * PIECE_S + SOON_S
        now = self._run.clock.now
        what = f"attempt {claim.attempt} is claimed at {now:.2f} s, and a worker has failed at {failed_at:.2f} s"
        require(now <= latest, f"{what}: the disks are busy with what can wait")
