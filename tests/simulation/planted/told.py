"""Machines with a bug each in what they tell people and each other."""

from __future__ import annotations

from typing import Any

from hpc_elastic.agent import policy
from hpc_elastic.agent.drivers import head_start, participation
from hpc_elastic.membership import head
from hpc_elastic.membership.actions import Action, Note, SendToMember
from hpc_elastic.membership.decisions import Observation
from hpc_elastic.membership.head import Head
from hpc_elastic.membership.member import Member
from hpc_elastic.membership.members import Members
from hpc_elastic.membership.messages import Spares
from hpc_elastic.membership.phases import HeadPhase
from hpc_elastic.membership.roster import RosterEntry
from hpc_elastic.rundir.records import Candidate, FailureRecord
from tests.simulation.plant import Plant


def _names_nobody(observation: Observation) -> str:
    return f"got {observation.detail} from outside"


def _says_it_twice(failure: FailureRecord, attempt: int) -> list[Action]:
    note = Note(name="attempt.failed", message="a rank has failed", attempt=attempt)
    return [note, note]


class _IsNeverOver(Head):
    def _left(self) -> list[Action]:
        actions = super()._left()
        if actions:
            self.phase = HeadPhase.CLOSING
        return actions


class _EndsTheJob(Member):
    def leaves(self, exit_code: int, cause: str, *, ends_job: bool = True) -> list[Action]:
        return super().leaves(exit_code, cause, ends_job=ends_job)


class _TellsEverybody(Members):
    """Nodes that gather for the first attempt hear of each other at each join."""

    def _name_spares(self, newcomer: RosterEntry) -> list[Action]:
        if self.world is not None:
            return super()._name_spares(newcomer)
        agents = tuple(Candidate(node=each.node, agent=each.join.agent) for each in self.roster)
        return [SendToMember(node=newcomer.node, message=Spares(agents=agents))]


BUGS: dict[str, tuple[Any, str, Any]] = {
    "a cause does not say who got the TERM": (policy, "_describe_stop", _names_nobody),
    "the end of an attempt is noted twice": (head, "observation_note", _says_it_twice),
    "a head that is over has another phase": (head_start, "Head", _IsNeverOver),
    "nodes that gather are told of each other": (head, "Members", _TellsEverybody),
    "a node that leaves by itself ends the job": (participation, "Member", _EndsTheJob),
}


class PlantedTold(Plant):
    """Machines that have this bug."""

    def __init__(self, bug: str) -> None:
        self._bug = bug

    def places(self) -> list[tuple[Any, str, Any]]:
        return [BUGS[self._bug]]
