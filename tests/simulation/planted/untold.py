"""A search for a first head with a bug in how it gives up one that has opened an attempt, which a rule must find."""

from __future__ import annotations

from typing import Any

from hpc_elastic.agent.drivers import head_side
from tests.simulation.plant import Plant
from tests.simulation.wiring import FindingFirst


class _WaitsForTheLost(FindingFirst):
    def _check_attempt(self, *_: Any) -> None:
        return


# And the words of the rule that each breaks.
UNTOLD_BUGS: dict[str, tuple[type[FindingFirst], str]] = {
    "who has had no answer waits for a head that is lost": (_WaitsForTheLost, "s for a head that has opened"),
}


class PlantedUntold(Plant):
    """A search that has this bug."""

    def __init__(self, bug: str) -> None:
        self._bug = bug

    def places(self) -> list[tuple[Any, str, Any]]:
        return [(head_side, "HeadSearch", UNTOLD_BUGS[self._bug][0])]
