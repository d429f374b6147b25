"""Machines with a bug each in what they do about nodes that are lost again and again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from hpc_elastic.agent.drivers import head_start
from hpc_elastic.membership import judge, members
from hpc_elastic.membership.aside import Aside
from hpc_elastic.membership.decisions import Decide, History
from hpc_elastic.membership.head import Head
from hpc_elastic.membership.losses import Losses
from hpc_elastic.membership.ranks import Seat
from hpc_elastic.membership.rounds import HeadSettings
from hpc_elastic.membership.succession import Succession
from hpc_elastic.rundir.records import LostNode, SetAside
from tests.simulation.plant import Plant


class _ForgetsLosses(Head):
    def __init__(
        self, settings: HeadSettings, *, history: History, decide: Decide, succession: Succession | None, **more: Any
    ) -> None:
        history = history if succession is None else replace(history, lost_nodes=(), set_aside=())
        super().__init__(settings, history=history, decide=decide, succession=succession, **more)


class _UsesThemAll(Aside):
    def leave_out(self, seats: Sequence[Seat], *, is_first: bool = False) -> Sequence[Seat]:
        return seats


class _LeavesThemOutAlways(Aside):
    def leave_out(self, seats: Sequence[Seat], *, is_first: bool = False) -> Sequence[Seat]:
        return [seat for seat in seats if seat.node not in self._nodes]


class _BlamesNobody(Losses):
    def at_fault(self, here: Collection[str]) -> tuple[str, ...]:
        return ()


def _blames_at_three(
    before: Sequence[SetAside], lost: Sequence[LostNode], nodes: Sequence[str]
) -> tuple[SetAside, ...]:
    why = "lost too often"
    found = [SetAside(node=each.node, why=why, allocation=each.allocation) for each in lost if each.times > 2]
    return (*before, *found)


BUGS: dict[str, tuple[Any, str, Any]] = {
    "a successor forgets who was lost": (head_start, "Head", _ForgetsLosses),
    "a node that was lost twice is used like any other": (judge, "Aside", _UsesThemAll),
    "a node that was lost twice is never used again": (judge, "Aside", _LeavesThemOutAlways),
    "a node that fell silent is never at fault": (members, "Losses", _BlamesNobody),
    "a node may be lost twice": (judge, "blame_lost", _blames_at_three),
}


class PlantedReturns(Plant):
    """Machines that have this bug."""

    def __init__(self, bug: str) -> None:
        self._bug = bug

    def places(self) -> list[tuple[Any, str, Any]]:
        return [BUGS[self._bug]]
