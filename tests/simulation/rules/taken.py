"""What comes of a notice that ranks take: those that exit 75 have not failed, and are named as ranks that go on later.

When every rank that counts has exited 0 or 75, the run is over, at once, and its result says which ranks are to go on;
and nothing is said of any that exited 0.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hpc_elastic.rank_set import parse_ranks
from hpc_elastic.rundir.records import RunResultRecord
from tests.simulation.rules.invariants import require
from tests.simulation.scenario import GRACE_S

if TYPE_CHECKING:
    from tests.simulation.world import SimulatedRun

_AGAIN = re.compile(r"ranks? ([\d,-]+) exited 75")


class Taken:
    """Of one run. Every method raises BrokenRuleError."""

    def __init__(self, run: SimulatedRun) -> None:
        self._run = run
        self._over_at: float | None = None  # when every rank that counts had exited 0 or 75

    def _ended(self) -> tuple[set[int], set[int], set[int]]:
        """The ranks that count in their latest attempts, and which of them have exited 0 and 75."""
        run, world = self._run, self._run.disk.latest
        if world is None:
            return set(), set(), set()
        attempts = {role.role: role.attempt for role in world.roles}
        counts = {rank.rank for rank in world.ranks if run.scenario.role(rank.role).restart != "ignore"}
        keys = list(attempts.items())
        well = set().union(*(run.witness.ended_well.get(key, set()) for key in keys))
        again = set().union(*(run.witness.took_notice.get(key, set()) for key in keys))
        return counts, well, again

    @property
    def are_all_over(self) -> bool:
        """Whether every rank that counts has exited 0 or 75, and some have done the latter."""
        counts, well, again = self._ended()
        return bool(again) and counts <= well | again

    def is_of(self, reason: str) -> bool:
        """Whether ranks have taken a notice, and one was given for this reason."""
        return self.are_all_over and any(each.reason == reason for each in self._run.notices)

    @property
    def _is_usual(self) -> bool:
        run = self._run
        is_played = run.scenario.heeds_notice and run.scenario.time_left_s is None
        return is_played and not run.witness.kinds and not run.witness.unkillable

    def watch(self) -> None:
        """After every event that changed something on a node."""
        if not self._run.scenario.heeds_notice or not self._is_usual or self._run.disk.results:
            return
        counts, well, again = self._ended()
        is_over = bool(counts) and bool(again) and counts <= well | again
        if not is_over or self._run.witness.unanswered():
            self._over_at = None
        elif self._over_at is None:
            self._over_at = self._run.clock.now

    def ended(self, result: RunResultRecord) -> None:
        """The result is on disk."""
        run = self._run
        if not run.scenario.heeds_notice:
            return
        counts, well, again = self._ended()
        if result.reason == "notice_taken":
            require(bool(again), "the run has ended by a notice, and no rank has taken it")
            found = _AGAIN.search(result.cause)
            require(found is not None, f"the result does not say which ranks are to go on: {result.cause}")
            assert found is not None
            told = {*parse_ranks(found[1])}
            require(counts & again <= told <= again, f"the result says that {told} are to go on, not {again}")
        if self._is_usual and result.reason == "succeeded":
            left = (counts & again) - well
            require(not left, f"the run has succeeded, and {left} are to go on")
        if self._is_usual and self._over_at is not None:
            waited_s, most_s = run.clock.now - self._over_at, run.progress.slack_s + GRACE_S
            if not any(role.restart == "ignore" for role in run.scenario.roles):
                most_s = run.progress.slack_s
            require(waited_s <= most_s, f"the end is noted {waited_s:.1f} s after all ranks have taken the notice")
