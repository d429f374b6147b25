"""Starts of the job that end without a word: the run goes on after each, until too many in a row make no progress.

Nobody has said why such a start ended, and the scheduler alone has started the job again. One that has opened no
attempt has made no progress; of one that has, the files that show progress tell, and the steps of its heartbeats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpc_elastic.rundir.records import AttemptClaim, RunResultRecord
from tests.simulation.rules.invariants import require

if TYPE_CHECKING:
    from tests.simulation.world import SimulatedRun


class SilentEnds:
    """Of one run in which nothing else goes wrong. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        scenario = run.scenario
        is_of_silence = bool(scenario.faults) and not scenario.is_resumed  # what a person starts again is no such start
        self._are_alone = is_of_silence and all(fault.what == "requeue" and not fault.side for fault in scenario.faults)
        self._limit = max(scenario.no_progress_limit, scenario.requeue_max)

    @property
    def count(self) -> int:
        """How many starts in a row, up to the one before this one, have ended so and made no progress."""
        disk, count = self._run.disk, 0
        starts = {each.allocation: each.restart_count for each in disk.allocations}
        worked = {starts[claim.allocation] for claim in disk.claims.values()}
        for start in sorted({*starts.values()} - {self._run.agents[0].start_number}):
            is_stuck = start not in worked or self._is_stuck(is_first=start == min(worked))
            count = count + 1 if is_stuck else 1
        return count

    def _is_stuck(self, *, is_first: bool) -> bool:
        """Whether a start that has worked has made no progress, as far as that is known."""
        changed = {"stuck": False, "moves": True, "unknown": None}[self._run.scenario.progress]
        further = {"stuck": is_first, "moves": True, "none": None}[self._run.scenario.steps]
        return False in (changed, further) and True not in (changed, further)

    @property
    def are_too_many(self) -> bool:
        """Whether the run has to end."""
        return self._are_alone and self.count >= self._limit

    def is_of_failure(self, reason: str) -> bool:
        """Whether a result with this reason is about a failure of workers, which it names."""
        return reason in ("restarts_used_up", "no_progress") and not self.are_too_many

    def claimed(self, claim: AttemptClaim) -> None:
        """A claim is on disk."""
        what = f"attempt {claim.attempt} is opened after {self.count} starts of the job without a word"
        require(not self.are_too_many, f"{what}, of {self._limit} that there may be")

    def ended(self, result: RunResultRecord) -> None:
        """The result is on disk."""
        if self._are_alone:
            is_so = (result.reason == "no_progress") == self.are_too_many
            require(is_so, f"the run has ended by {result.reason} after {self.count} starts without a word")
