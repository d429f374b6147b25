"""Bugs in copies of states on other nodes, each of which the rules of `copies` and `states` must find."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hpc_elastic.membership import copy_ledger, held_states, run_states
from hpc_elastic.membership.held_states import Held, StateChoice, choose_states
from hpc_elastic.rundir.records import World
from hpc_elastic.rundir.state_records import StateVersion
from hpc_elastic.state_memory import choose_slot
from tests.simulation.plant import Plant
from tests.simulation.rules.copies import NodeCopies
from tests.simulation.rules.states import NodeStates, Saved, slot_states


def _the_older(self: NodeCopies, part: str, wanted: StateVersion) -> int | None:
    """What is given is the older copy of that part, whichever was asked for."""
    versions = sorted(version for each, version in self._ledger.held() if each == part)
    return self._ledger.find(part, versions[0]) if versions else None


def _of_any_part(self: NodeCopies, part: str, wanted: StateVersion) -> int | None:
    found = self._ledger.find(part, (wanted.attempt, wanted.step))
    if found is None:
        for other, version in self._ledger.held():
            if version == (wanted.attempt, wanted.step):
                slot = self._ledger.find(other, version)
                assert slot is not None
                self._kept[part, slot] = self._kept[other, slot]
                return slot
    return found


def _ignores_damage(self: NodeCopies, saved: Saved) -> bool:
    return False


def _without_the_world(role: str, first: int, workers: int, *_: int) -> str:
    """A part is that of the same ranks in a world of another size, too."""
    return f"{first}+{workers}/0 0/0 {role}"


def _overwrites_what_is_copied(self: NodeStates, slots: list[Saved | None], touched: set[int]) -> int:
    """The older of two states goes, as where nothing is copied."""
    return choose_slot(slot_states(slots), touched, 0)


def _counts_no_copies(world: World, roles: Iterable[str], held: Held, **more: Any) -> StateChoice:
    return choose_states(world, roles, held, **{**more, "keepers": {}})


COPY_BUGS: dict[str, list[tuple[Any, str, Any]]] = {
    "the older copy is given": [(NodeCopies, "_slot_of", _the_older)],
    "the copy of other ranks is given": [
        (NodeCopies, "_slot_of", _of_any_part),
        (held_states, "_part", lambda role, *_: role),
    ],
    "checksums of copies are ignored": [(NodeCopies, "_is_found_damaged", _ignores_damage)],
    "a copy of a world of another size is taken": [(held_states, "_part", _without_the_world)],
    "one place for the copies of a part": [(copy_ledger, "VERSIONS", 1)],
    "what waits for its copy is overwritten": [(NodeStates, "_victim", _overwrites_what_is_copied)],
    "a node is told of all that have a state": [(held_states, "MOST_HOLDERS", 9)],
    "copies are not counted": [(run_states, "choose_states", _counts_no_copies)],
}


class PlantedCopy(Plant):
    """Copies that have this bug."""

    def __init__(self, bug: str) -> None:
        self._bug = bug

    def places(self) -> list[tuple[Any, str, Any]]:
        return COPY_BUGS[self._bug]
