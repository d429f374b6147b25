"""What a run directory that refuses one agent may cost: the time, and after half a minute the run.

Whoever needs it tries again, at first at once and later every two seconds, for thirty seconds: what ends before that
costs no attempt, no node and no success.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_elastic.errors import ExitCode
from hpc_elastic.rundir.records import AttemptClaim, RunResultRecord
from tests.simulation.rules.invariants import require

if TYPE_CHECKING:
    from tests.simulation.world import SimulatedRun

TRIES_FOR_S = 30.0
PAUSE_S = 2.0  # the longest, between two tries
SOON_S = 1.0
LEAVES_S = 10.0  # with what else is written and refused on the way


class RefusedDisks:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._is_played = run.scenario.is_refused_disk
        if not self._is_played:
            return
        faults = run.scenario.faults
        self._until = faults[0].at + faults[0].lasts_s
        self._is_short = faults[0].lasts_s < TRIES_FOR_S
        self._failures = len(faults) - 1
        self._first_at = faults[0].at + 0.5 * self._failures  # when something is first refused that is needed
        self._is_at_start = not faults[0].at
        if self._is_at_start and not self._is_short:
            self._is_played = False  # another node may claim, or none; that takes the others' time

    def claimed(self, claim: AttemptClaim) -> None:
        """A claim is on disk."""
        if not self._is_played:
            return
        now = self._run.clock.now
        require(claim.attempt <= 1 + self._failures, f"attempt {claim.attempt} comes for a disk that refused")
        spent = claim.spend.restarts, claim.spend.node_losses
        expected = (claim.attempt - 1, 0)
        require(spent == expected, f"attempt {claim.attempt} costs {spent}, not {expected}")
        if claim.attempt == 2 or self._is_at_start:
            latest = max(self._until + 2 * PAUSE_S, 2.0) + SOON_S
            require(self._is_short and now <= latest, f"attempt {claim.attempt} is claimed at {now:.1f} s")

    def ended(self, result: RunResultRecord) -> None:
        """The result is on disk."""
        if not self._is_played:
            return
        now, told = self._run.clock.now, (result.reason, result.attempts)
        require(told == ("succeeded", 1 + self._failures), f"the run ends with {told}, and only a disk has refused")
        latest = max(self._run.witness.last_end_at, self._until + PAUSE_S) + SOON_S
        require(now <= latest, f"the result is written at {now:.1f} s, not by {latest:.1f} s")

    def check_end(self) -> None:
        """When nobody runs any more."""
        if not self._is_played or self._run.disk.results:
            return
        require(not self._is_short, "a disk has refused for less than half a minute, and the run has no result")
        for agent in self._run.agents:
            code = agent.exit_code
            require(
                code == ExitCode.RUN_DIRECTORY, f"{agent.name} leaves with {code}, and the run directory has failed"
            )
            earliest = self._first_at + TRIES_FOR_S
            is_in_time = earliest - 0.1 <= agent.left_at <= earliest + LEAVES_S
            require(is_in_time, f"{agent.name} leaves at {agent.left_at:.1f} s, not soon after {earliest:.1f} s")
