"""Machines and drivers with a bug each in what records say or what a head leaves undone, which rules must find."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hpc_elastic.agent.drivers.coordinator import Coordinator
from hpc_elastic.agent.drivers.head_side import HeadSide
from hpc_elastic.membership import succession
from hpc_elastic.membership.member import Member
from tests.simulation.plant import Plant


def _without_pids(started: Callable[..., Any]) -> Callable[..., Any]:
    return lambda member, attempt, pids: started(member, attempt, {})


def _keep(_: Callable[..., Any]) -> Callable[..., Any]:
    return lambda head, connection, why: None


def _at_once(_: Callable[..., Any]) -> Callable[..., Any]:
    return lambda head, why: head.over.set()


def _in_a_low_voice(claiming: Callable[..., Any]) -> Callable[..., Any]:
    def claim(side: HeadSide) -> None:
        claiming(side)
        side._journal.is_head = False

    return claim


def _in_a_row(_: Callable[..., Any]) -> Callable[..., Any]:
    return list


# By name: where it is, what it does instead, the kind of scenario that shows it, and words of the rule that it breaks.
WRITTEN_BUGS: Mapping[str, tuple[Any, str, Callable[..., Any], str, str]] = {
    "process ids are forgotten": (Member, "workers_started", _without_pids, "failures", "process ids"),
    "a dropped member keeps its connection": (Coordinator, "_hang_up", _keep, "foretold", "keeps its connection"),
    "a head leaves before its members": (Coordinator, "own_member_left", _at_once, "foretold", "have not left"),
    "nobody reads the lines of a head": (HeadSide, "_claiming", _in_a_low_voice, "failures", "its own log alone"),
    "nodes of a rack have turns in a row": (succession, "order_of_succession", _in_a_row, "roles", "names the turns"),
}


class PlantedWritten(Plant):
    """A package that has this bug."""

    def __init__(self, bug: str) -> None:
        self._bug = WRITTEN_BUGS[bug]

    def places(self) -> list[tuple[Any, str, Any]]:
        owner, name, make, _, _ = self._bug
        return [(owner, name, make(getattr(owner, name)))]
