"""What comes of a goodbye: a member that hears no head has half a lease to find it again, and is lost otherwise.

Nothing else happens in these runs, but that the first head may have been lost before. The member fences two thirds of a
lease after it sent the last beat that was answered, which is a beat before it grew deaf at the earliest, and says
goodbye. If it can hear in time it is back, and costs the run an attempt and no loss. Else its loss is counted, and ends
the run if that is one too many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_elastic.rundir.records import AttemptClaim, RunResultRecord
from tests.simulation.rules.invariants import require

if TYPE_CHECKING:
    from tests.simulation.world import SimulatedRun

EXACT_S = 0.1
WRITES_S = 0.6  # with the stop of who is left
BACK_S = 1.5  # who can hear again has found its head by then


class Goodbyes:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self.is_played = run.scenario.is_goodbye
        if not self.is_played:
            return
        *earlier, fault = run.scenario.faults
        self._lost_before = len(earlier)
        self._heals_at = fault.at + fault.lasts_s
        self._is_back = fault.lasts_s < run.scenario.lease_s
        self._is_over = not self._is_back and run.scenario.max_node_losses == self._lost_before

    def claimed(self, claim: AttemptClaim, before: AttemptClaim | None) -> None:
        """A claim is on disk."""
        if not self.is_played or claim.attempt <= 1 + self._lost_before or before is None:
            return
        what = f"attempt {claim.attempt}, after a goodbye,"
        is_first = claim.attempt == 2 + self._lost_before
        require(is_first, f"{what} comes, and nothing has happened since attempt {claim.attempt - 1}")
        require(not self._is_over, f"{what} comes, and the run may lose no node")
        lost = set(before.members) - set(claim.members)
        require(bool(lost) != self._is_back, f"{what} has {claim.members}, of {before.members}")
        losses = claim.spend.node_losses - before.spend.node_losses
        require(losses == len(lost), f"{what} counts {losses} losses, not {len(lost)}")
        self._check_time(what, self._run.disk.asked_at[claim.attempt], EXACT_S)

    def ended(self, result: RunResultRecord) -> None:
        """The result is on disk."""
        if not self.is_played:
            return
        reason = "node_losses_used_up" if self._is_over else "succeeded"
        require(result.reason == reason, f"after a goodbye the run ends by {result.reason}, not by {reason}")
        if self._is_over:
            is_named = any(each.name in result.cause for each in self._run.agents)
            require(is_named, f"the run ends for a lost node, and does not name it: {result.cause}")
            self._check_time("the end of the run, after a goodbye,", self._run.clock.now, WRITES_S)

    def _check_time(self, what: str, at: float, within_s: float) -> None:
        heard = [at for at, is_parting in self._run.heard_at.values() if is_parting]
        earliest, latest = self._heals_at, self._heals_at + BACK_S
        if not self._is_back:
            require(bool(heard), f"{what} comes, and no goodbye was heard")
            earliest = latest = max(heard, default=0.0) + self._run.scenario.lease_s / 2
        is_in_time = earliest - EXACT_S <= at <= latest + within_s
        require(is_in_time, f"{what} comes at {at:.2f} s, not from {earliest:.2f} to {latest:.2f} s")
