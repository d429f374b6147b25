"""Machines with a bug each in what they do about ranks that save."""

from __future__ import annotations

from typing import Any

from hpc_elastic.agent import policy
from hpc_elastic.agent.drivers import participation
from hpc_elastic.membership import head, messages
from hpc_elastic.membership.actions import Action
from hpc_elastic.membership.decisions import Observation
from hpc_elastic.membership.member import Member, MemberPhase
from hpc_elastic.membership.members import Members
from hpc_elastic.membership.messages import StopManner
from tests.simulation.plant import Plant


def _fences_always(_: Observation) -> StopManner:
    return StopManner.FENCE


def _lets_save_always(_: Observation) -> StopManner:
    return StopManner.LOSS


class _TrustsTheDead(Members):
    def are_others_too_few(self) -> bool:
        return True


class _FinishesItsStop(Member):
    def _told_to_stop(self, stop: messages.Stop, now: float) -> list[Action]:
        return [] if self.phase is MemberPhase.STOPPING else super()._told_to_stop(stop, now)


IGNORES_FENCE = "a fence waits for the stop that is under way"
BUGS: dict[str, tuple[Any, str, Any]] = {
    "the death of an agent kills ranks that save": (policy, "_stop_after_loss", _fences_always),
    "ranks may save although a silent node may go on": (policy, "_stop_after_loss", _lets_save_always),
    "ranks may save although those that count as dead may go on": (head, "Members", _TrustsTheDead),
    IGNORES_FENCE: (participation, "Member", _FinishesItsStop),
}


class PlantedSaves(Plant):
    """Machines that have this bug."""

    def __init__(self, bug: str) -> None:
        self._bug = bug

    def places(self) -> list[tuple[Any, str, Any]]:
        return [BUGS[self._bug]]
