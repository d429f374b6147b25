"""Machines with a bug each in the saves that people ask for, which the rules of `asked_saves` must find."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hpc_elastic.agent.drivers import coordinator, state_saves
from hpc_elastic.agent.drivers.state_saves import StateSaves
from hpc_elastic.agent.workers import requested_saves
from hpc_elastic.membership.messages import Saved
from hpc_elastic.membership.state_save import SaveAction, StateSave
from hpc_elastic.rundir.records import Request
from tests.simulation.plant import Plant
from tests.simulation.rules.asked_saves import NodeSaves


class _WaitsForOne(StateSave):
    def _wrote(self, node: str, message: Saved, now: float) -> list[SaveAction]:
        if message.files:
            self._asked = {node}
        return super()._wrote(node, message, now)


class _IgnoresWhatIsGone(StateSave):
    def _wrote(self, node: str, message: Saved, now: float) -> list[SaveAction]:
        return super()._wrote(node, replace(message, problem=None, is_gone=False), now)


class _ClearsUpForTheRefused(StateSaves):
    def asked(self, request: Request) -> None:
        if self._save is not None:
            self._thread().best_effort(self._journal.remove_incomplete_saves)
        super().asked(request)


class _AnswersTwice(StateSaves):
    def _tell_failed(self, request: Request, problem: str) -> None:
        super()._tell_failed(request, problem)
        super()._tell_failed(request, f"{problem}, as was said")


class _SaysNothing(StateSaves):
    def _tell_failed(self, request: Request, problem: str) -> None:
        """Nobody hears why."""


class _SavedAtOnce(StateSave):
    def _wrote(self, node: str, message: Saved, now: float) -> list[SaveAction]:
        self._wrote = super()._wrote  # type: ignore[method-assign]
        return self._end(None)


def _does_nothing(*_: object) -> None:
    """It does not let go."""


def _end_without_unpin(self: NodeSaves) -> None:
    if self._release is not None:
        self._release.cancel()
    self._request, self._release = None, None


LOST_HEAD = "a stop does not end the pins of a lost head"
BUGS: dict[str, list[tuple[Any, str, Any]]] = {
    "the manifest does not wait for all nodes": [(state_saves, "StateSave", _WaitsForOne)],
    "what is gone counts as written": [(state_saves, "StateSave", _IgnoresWhatIsGone)],
    "a state is said to be saved before it is": [(state_saves, "StateSave", _SavedAtOnce)],
    "a refused request removes what another one writes": [(coordinator, "StateSaves", _ClearsUpForTheRefused)],
    "a request is answered twice": [(coordinator, "StateSaves", _AnswersTwice)],
    "nobody is told why there is no save": [(coordinator, "StateSaves", _SaysNothing)],
    LOST_HEAD: [(NodeSaves, "interrupt", _does_nothing)],
    "pins do not end": [(NodeSaves, "_end", _end_without_unpin)],
    "what was given up is left": [
        (requested_saves, "remove_parts", _does_nothing),
        (StateSaves, "_clear_up", _does_nothing),
        (StateSaves, "run_ended", _does_nothing),
    ],
}


class PlantedAskedSaves(Plant):
    """Machines that have this bug."""

    def __init__(self, bug: str) -> None:
        self._bug = bug

    def places(self) -> list[tuple[Any, str, Any]]:
        return BUGS[self._bug]
