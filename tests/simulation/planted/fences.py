"""Machines with a bug each in what a head does, and says, as it loses a node that may live."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hpc_elastic.agent.drivers import head_start
from hpc_elastic.membership import head, members
from hpc_elastic.membership.actions import Action
from hpc_elastic.membership.decisions import Finish, RestartWorkers
from hpc_elastic.membership.head import Head
from hpc_elastic.membership.judge import Judge, Seen
from hpc_elastic.membership.losses import Losses
from hpc_elastic.membership.members import Members
from hpc_elastic.membership.own_node import OwnNode
from tests.simulation.plant import Plant


class _TellsAgain(Members):
    def fence(self) -> list[Action]:
        self._has_fenced = False
        return super().fence()


class _LetsItsOwnRun(Head):
    def fence_deadline(self) -> float:
        return self._members.leases.deadline


class _TakesSilenceForDeath(Judge):
    def takes(self, seen: Seen, decision: RestartWorkers | Finish) -> RestartWorkers | Finish | None:
        return super().takes(replace(seen, is_agent_dead=True), decision)


class _ForgetsWhoIsLost(Losses):
    @property
    def nodes(self) -> tuple[str, ...]:
        return ()


class _NeverStoodStill(OwnNode):
    def has_just_woken(self, now: float) -> bool:
        return False


# By bug: the kind of schedule and the seed that show it, what the rule says, and where it is planted.
FENCE_BUGS: dict[str, tuple[str, int, str, tuple[Any, str, Any]]] = {
    "members are told of each loss again": (
        "last-losses",
        8,
        "again to kill its workers",
        (head, "Members", _TellsAgain),
    ),
    "a head lets its own workers run": ("farewells", 0, "own workers may run", (head_start, "Head", _LetsItsOwnRun)),
    "silence is taken for death": ("last-losses", 9, "and they may live", (head, "Judge", _TakesSilenceForDeath)),
    "ranks of lost nodes are named": ("last-losses", 2, "their nodes are lost", (members, "Losses", _ForgetsWhoIsLost)),
    "a head that stood still blames others": ("foretold", 0, "it stood still", (head, "OwnNode", _NeverStoodStill)),
}


class PlantedFences(Plant):
    """Machines that have this bug."""

    def __init__(self, bug: str) -> None:
        self._bug = bug

    def places(self) -> list[tuple[Any, str, Any]]:
        return [FENCE_BUGS[self._bug][3]]
