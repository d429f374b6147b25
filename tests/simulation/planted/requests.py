"""Heads with a bug each in what they make of people's requests, which the rules of `requested` must find."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hpc_elastic.agent.drivers import head_start
from hpc_elastic.membership.actions import Action, Log
from hpc_elastic.membership.head import Head
from hpc_elastic.membership.operator_stop import OperatorStop
from tests.simulation.plant import Plant


class _RestartsNothing(Head):
    def restart_requested(self, by: str, now: float) -> list[Action]:
        return []


class _DrainsNothing(Head):
    def drain_requested(self, node: str, by: str, now: float) -> list[Action]:
        return []


class _RefusesDrains(Head):
    def drain_requested(self, node: str, by: str, now: float) -> list[Action]:
        return [Log(text=f"{by} asked to drain {node}, but too few other nodes are here; nothing was done")]


class _OnlyRestarts(Head):
    """The drained node is in the next attempt as well."""

    def drain_requested(self, node: str, by: str, now: float) -> list[Action]:
        return self.restart_requested(by, now)


class _NeverStops(Head):
    def stop_announced(self, stop: OperatorStop, now: float) -> list[Action]:
        return []


class _StopsAtOnce(Head):
    def stop_announced(self, stop: OperatorStop, now: float) -> list[Action]:
        return super().stop_announced(replace(stop, seconds_left=0.0), now)


REQUEST_BUGS: dict[str, type[Head]] = {
    "a restart is passed over": _RestartsNothing,
    "a drain is passed over": _DrainsNothing,
    "a drain is refused where enough other nodes are": _RefusesDrains,
    "a drained node is used again": _OnlyRestarts,
    "an announced stop never comes": _NeverStops,
    "an announced stop comes at once": _StopsAtOnce,
}


class PlantedRequests(Plant):
    """A head that has this bug."""

    def __init__(self, bug: str) -> None:
        self._bug = bug

    def places(self) -> list[tuple[Any, str, Any]]:
        return [(head_start, "Head", REQUEST_BUGS[self._bug])]
