"""Machines with a bug each in what they do about unhealthy nodes: planted for the simulation to find."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from hpc_elastic.agent.drivers import head_start, participation
from hpc_elastic.membership import members, messages
from hpc_elastic.membership.actions import Action
from hpc_elastic.membership.decisions import Trigger
from hpc_elastic.membership.head import Head
from hpc_elastic.membership.judge import Seen
from hpc_elastic.membership.member import Member
from hpc_elastic.membership.messages import Join
from hpc_elastic.membership.ranks import Seat
from hpc_elastic.membership.roster import Roster, RosterEntry
from tests.simulation.plant import Plant


class _SeatsAll(Roster):
    def seats(self, *, with_unhealthy: bool = False, called_back: Collection[str] = ()) -> list[Seat]:
        return super().seats(with_unhealthy=True, called_back=called_back)


class _CountsAll(Roster):
    @property
    def healthy(self) -> int:
        return len(self)

    def short_of(self, least: Mapping[str, int]) -> dict[str, int]:
        unhealthy, self._unhealthy = self._unhealthy, {}
        try:
            return super().short_of(least)
        finally:
            self._unhealthy = unhealthy


class _HeadMustBeHealthy(Head):
    def joined(self, join: Join, now: float) -> list[Action]:
        actions = super().joined(join, now)
        if join.unhealthy is None or join.node != self._settings.node:
            return actions
        return actions + self._observe(Seen(trigger=Trigger.NODE_UNFIT, nodes=(join.node,), detail="unhealthy"), now)


class _PassesOver(Head):
    def _examined(self, member: RosterEntry, problem: str | None, now: float) -> list[Action]:
        return []


class _JoinsAsHealthy(Member):
    def asks(self) -> messages.Join:
        join = super().asks()
        self._told = self.join.unhealthy
        return replace(join, unhealthy=None)


class _FindsNothing(Member):
    def examined(self, problem: str | None) -> list[Action]:
        return []


BUGS: dict[str, tuple[Any, str, Any]] = {
    "an unhealthy node gets a seat": (members, "Roster", _SeatsAll),
    "an unhealthy node counts for min": (members, "Roster", _CountsAll),
    "an unhealthy head's node ends the run": (head_start, "Head", _HeadMustBeHealthy),
    "a head passes over what checks find later": (head_start, "Head", _PassesOver),
    "a member joins another head as if it were healthy": (participation, "Member", _JoinsAsHealthy),
    "a member keeps what its checks find to itself": (participation, "Member", _FindsNothing),
}


class PlantedHealth(Plant):
    """Machines that have this bug."""

    def __init__(self, bug: str) -> None:
        self._bug = bug

    def places(self) -> list[tuple[Any, str, Any]]:
        return [BUGS[self._bug]]
