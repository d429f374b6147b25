"""What a large world owes after one loss: all who live are in the next attempt, soon, and few are asked on the way."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hpc_elastic.rundir.records import AttemptClaim, RunResultRecord
from tests.simulation.rules.invariants import require

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.world import SimulatedRun

DIALS = 25  # of an agent until it has a head again, in the mean, and two for each that is dead
READS = 4  # of the whole roster


class Large:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._is_played = run.scenario.is_large
        self._dials: Counter[str] = Counter()
        self._rosters = 0

    @property
    def _is_searching(self) -> bool:
        run = self._run
        faults = run.scenario.faults
        return self._is_played and run.clock.now >= faults[0].at and len(run.disk.claims) == 1 and not run.disk.results

    def dials(self, agent: Agent) -> None:
        """An agent connects to another one."""
        if self._is_searching:
            self._dials[agent.name] += 1

    def reads(self, path: str) -> None:
        """An agent reads a file."""
        if self._is_searching and path.endswith("/world.json"):
            self._rosters += 1
            require(self._rosters <= READS, f"the roster is read {self._rosters} times after one loss")

    def claimed(self, claim: AttemptClaim) -> None:
        """A claim is on disk."""
        run = self._run
        if not self._is_played or claim.attempt == 1:
            return
        lost = {f"node{fault.node}" for fault in run.scenario.faults}
        require(claim.attempt == 2, f"attempt {claim.attempt} comes after one loss")
        here = {agent.name for agent in run.agents} - lost
        require(set(claim.members) == here, f"{sorted(here - set(claim.members))} live, and are not in the next world")
        require(
            claim.spend.node_losses == len(lost), f"{len(lost)} are lost, and {claim.spend.node_losses} are counted"
        )
        waited_s, lease_s = run.disk.asked_at[2] - run.scenario.faults[0].at, run.scenario.lease_s
        is_silent = run.scenario.faults[0].what == "power_off"
        # A successor does not hear of the other dead, and waits for them.
        most_s = 3.0 if not is_silent and len(lost) == 1 else lease_s * (1 if len(lost) == 1 else 2) + 5
        require(waited_s <= most_s, f"the next attempt comes after {waited_s:.2f} s, not within {most_s:.2f} s")
        counts = sorted(self._dials.values())[:-1]  # who gathers asks again and again
        mean = sum(counts) / max(1, len(counts))
        most = DIALS + 2 * len(lost) + 2 * max(0.0, waited_s - 5)
        require(mean <= most, f"each agent has asked {mean:.1f} others for their head")

    def ended(self, result: RunResultRecord) -> None:
        """The result is on disk."""
        if self._is_played:
            told = result.reason, result.attempts
            require(told == ("succeeded", 2), f"the run is over: {told}, though all but a few nodes are there")
