"""Searches with a bug each in what they make of a result whose writer is gone, which the rules must find."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hpc_elastic.agent.rendezvous import successor
from hpc_elastic.membership.actions import Leave
from hpc_elastic.membership.discovery import DiscoveryAction, DiscoverySettings, HeadDiscovery
from hpc_elastic.membership.succession import LostHead
from hpc_elastic.rundir.records import RunResultRecord
from tests.simulation.plant import Plant


class _LeavesForItsLoss(HeadDiscovery):
    def _leave_at(self, result: RunResultRecord) -> list[DiscoveryAction]:
        return self._leave(self._loss())


class _LeavesTheJob(HeadDiscovery):
    def _leave_at(self, result: RunResultRecord) -> list[DiscoveryAction]:
        does = super()._leave_at(result)
        return [replace(each, ends_job=False) if isinstance(each, Leave) else each for each in does]


class _EndsTheJob(HeadDiscovery):
    def _leave_at(self, result: RunResultRecord) -> list[DiscoveryAction]:
        does = super()._leave_at(result)
        return [
            replace(each, ends_job=self._settings.can_end_job) if isinstance(each, Leave) else each for each in does
        ]


class _ReadsLate(HeadDiscovery):
    def __init__(self, settings: DiscoverySettings, lost: LostHead, now: float) -> None:
        super().__init__(settings, lost, now)
        self._read_at = now + 6.0


# And the words of the rule that each breaks.
UNHEARD_BUGS: dict[str, tuple[type[HeadDiscovery], str]] = {
    "who finds the result leaves for the loss of its head": (_LeavesForItsLoss, "finds a result that says"),
    "who finds the result leaves the job to a script that is lost": (_LeavesTheJob, "nobody ends the job"),
    "who finds the result ends the job of a script that is there": (_EndsTheJob, "was never away"),
    "the result is looked for late": (_ReadsLate, "s after the result"),
}


class PlantedUnheard(Plant):
    """A search that has this bug."""

    def __init__(self, bug: str) -> None:
        self._bug = bug

    def places(self) -> list[tuple[Any, str, Any]]:
        return [(successor, "HeadDiscovery", UNHEARD_BUGS[self._bug][0])]
