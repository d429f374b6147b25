"""Who asked a head to join that opened an attempt with it, and was lost before its answer: the search goes on for it.

It has had no word of that head, so it gives it a lease, and takes part in the succession after that, as a member does:
it is one by the claim. Else nobody would go on where all are like that, and where some are not they wait in vain.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hpc_elastic.agent.rendezvous.search_times import SEARCH_TIMES
from hpc_elastic.membership.timing import DRIFT
from hpc_elastic.rundir.records import AttemptClaim
from tests.simulation.rules.invariants import require

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.world import SimulatedRun

USUAL = frozenset({"power_off", "partition", "kill_agent"})  # of the head, which is all that happens
LOOKS_S = SEARCH_TIMES.silent_after_s + SEARCH_TIMES.read_claim_every_s + 1.0
MESSAGES = 8  # of a conversation, and of one that was tried in vain


class Untold:
    """Of one run. `claimed` has a rule checked later, which raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self.searched: set[str] = set()  # agents that have searched for another head

    def begins(self, agent: Agent) -> None:
        """An agent searches for another head than its own."""
        self.searched.add(agent.name)

    def claimed(self, claim: AttemptClaim) -> None:
        """A claim is on disk."""
        run = self._run
        if claim.attempt > 1 or len(run.scenario.faults) != 1 or run.scenario.faults[0].what not in USUAL:
            return
        wait_s = run.scenario.lease_s * (1 + DRIFT) + LOOKS_S
        wait_s += MESSAGES * (max(run.scenario.delays_s) + max(run.scenario.disk_s))
        for name in sorted(set(claim.members) - run.witness.joined - {claim.head}):
            run.clock.after(wait_s, partial(self._check, name, wait_s))

    def _check(self, name: str, wait_s: float) -> None:
        run = self._run
        latest = run.disk.latest_claim  # that head may have gone on, without this node
        is_member = latest is not None and name in latest.members
        is_there = is_member and run.agent(name).is_running and not run.disk.results
        knows = name in self.searched | run.witness.joined
        require(knows or not is_there, f"{name} waits for {wait_s:.1f} s for a head that has opened an attempt with it")
