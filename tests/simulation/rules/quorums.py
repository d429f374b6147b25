"""What it costs to be cut off from a node that the run needs: an attempt if it is back in time, and else the run.

Nothing else happens in these runs. Each side is too small to go on alone, so the head waits for two leases after it has
lost the other side, and goes on as soon as that is back: all have fenced by then. Where it never is back, the head ends
the run; and where the run may lose no nodes, it ends for that, once they are back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_elastic.rundir.records import AttemptClaim, RunResultRecord
from tests.simulation.rules.invariants import require

if TYPE_CHECKING:
    from tests.simulation.world import SimulatedRun

BACK_S = 2.5  # a pause between two rounds of dialling, and the longest that it takes to know of a lost message
GIVES_UP_AFTER = 3  # leases after the last news of the others: with the first of them it has lost them
KNOWN_FOR = 0.35  # of a lease, at most, is the newest news older than the cut: two beats
WRITES_S = 1.0
BECAUSE = "enough nodes are back"


class Quorums:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self.is_played = run.scenario.is_quorum
        if not self.is_played:
            return
        (fault,) = run.scenario.faults
        self._cut_at, self._heals_at = fault.at, fault.at + fault.lasts_s
        self._is_back = fault.lasts_s < GIVES_UP_AFTER * run.scenario.lease_s
        self._is_used_up = run.scenario.max_node_losses == 0
        self._losses = 1 if 0 not in fault.side else run.scenario.nodes - 1  # of a head that is cut off itself

    def claimed(self, claim: AttemptClaim, before: AttemptClaim | None) -> None:
        """A claim is on disk."""
        if not self.is_played or before is None:
            return
        what, at = f"attempt {claim.attempt}, of nodes that are back,", self._run.disk.asked_at[claim.attempt]
        require(self._is_back, f"{what} comes, and they are not")
        require(not self._is_used_up, f"{what} comes, and the run may lose none")
        require(claim.attempt == 2, f"{what} comes, and nothing has happened since the second")
        require(claim.head == before.head, f"{what} is opened by {claim.head}, and {before.head} was never away")
        require(claim.members == before.members, f"{what} has {claim.members}, of {before.members}")
        require(claim.reason == BECAUSE, f"{what} comes because {claim.reason!r}")
        losses = claim.spend.node_losses
        require(losses == 1, f"{what} counts {losses} losses, not one of all that are back")
        is_prompt = self._heals_at <= at <= self._heals_at + BACK_S
        require(is_prompt, f"{what} comes at {at:.2f} s, and they could be back at {self._heals_at:.2f} s")

    def ended(self, result: RunResultRecord) -> None:
        """The result is on disk."""
        if not self.is_played:
            return
        told, now = (result.reason, result.attempts), self._run.clock.now
        if self._is_back and self._is_used_up:
            self._check_used_up(result)
            return
        if self._is_back:
            require(told == ("succeeded", 2), f"the run ends with {told}, and the nodes that it needs are back")
            return
        require(told == ("node_lost", 1), f"the run ends with {told}, and the nodes that it needs are lost")
        lease_s = self._run.scenario.lease_s
        latest = self._cut_at + GIVES_UP_AFTER * lease_s
        is_prompt = latest - KNOWN_FOR * lease_s <= now <= latest + WRITES_S
        require(is_prompt, f"the run ends at {now:.2f} s, and its head could wait until {latest:.2f} s")

    def _check_used_up(self, result: RunResultRecord) -> None:
        told, now = (result.reason, result.attempts), self._run.clock.now
        require(told == ("node_losses_used_up", 1), f"the run ends with {told}, and it has lost too many nodes")
        gives_up_at = self._cut_at + GIVES_UP_AFTER * self._run.scenario.lease_s
        is_prompt = self._heals_at <= now <= max(self._heals_at + BACK_S, gives_up_at) + WRITES_S
        require(is_prompt, f"the run ends at {now:.2f} s, and its nodes could be back at {self._heals_at:.2f} s")
        cause = result.root_cause
        named = set() if cause is None else {cause.node, *cause.nodes} - {""}
        what = f"the run has lost {self._losses} nodes, and its root cause is {cause}"
        require(cause is not None and cause.line == result.cause and len(named) == self._losses, what)
