"""Bugs in what is kept when an allocation ends, and in what the next one begins with, which the rules must find."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hpc_elastic.membership import held_states, run_states
from hpc_elastic.membership.held_states import Held, shared_place, states_to_flush
from hpc_elastic.membership.run_states import RunStates
from hpc_elastic.rundir.records import World, WorldNode
from hpc_elastic.rundir.state_records import Flush, KeptState, StateVersion
from tests.simulation.plant import Plant
from tests.simulation.rules.kept import Kept
from tests.simulation.rules.states import Saved


def _each_its_newest(world: World, held: Held, ended: int) -> dict[str, Flush]:
    """Every node writes what it holds itself, whatever the others hold."""
    newest = {node: max((state.version for state in states), default=None) for node, states in held.items()}
    names = {node.node for node in world.nodes}
    return {node: Flush(ended=ended, state=version) for node, version in newest.items() if version and node in names}


def _the_oldest(world: World, held: Held, ended: int) -> dict[str, Flush]:
    oldest = {node: states and (min(states, key=lambda each: each.version),) for node, states in held.items()}
    return states_to_flush(world, oldest, ended)


def _one_node_only(world: World, held: Held, ended: int) -> dict[str, Flush]:
    """As for a state that is the same on all ranks."""
    return dict(list(states_to_flush(world, held, ended).items())[:1])


def _of_the_attempt_before(world: World, held: Held, ended: int) -> dict[str, Flush]:
    return states_to_flush(world, held, max(1, ended - 1))


def _nothing(world: World, held: Held, ended: int) -> Mapping[str, Flush]:
    return {}


def _fits_any_rank(world: World, node: WorldNode, kept: KeptState) -> bool:
    return bool(kept.places)


def _fetches_any(self: Kept, place: str, version: StateVersion) -> Saved | None:
    files = self._files[max(self._files)]
    return next((saved for saved in files.values() if saved.version == version), None)


def _ignores_damage(self: Kept, saved: Saved) -> bool:
    return False


def _misses_nothing(self: RunStates, role: str, state: StateVersion) -> None:
    """The next attempt is told to begin with it again."""


def _forgets_the_part(world: World, held: Held, ended: int) -> dict[str, Flush]:
    """What belongs to its ranks is taken for what is the same on all of them."""
    whose = {node.node: shared_place(node.role) for node in world.nodes}
    shared = {
        node: tuple(replace(each, part=whose.get(node, each.part)) for each in states) for node, states in held.items()
    }
    return states_to_flush(world, shared, ended)


KEPT_BUGS: dict[str, list[tuple[Any, str, Any]]] = {
    "each node writes its own newest state": [(run_states, "states_to_flush", _each_its_newest)],
    "the older state is written": [(run_states, "states_to_flush", _the_oldest)],
    "one node writes for all": [(run_states, "states_to_flush", _one_node_only)],
    "states of ranks are written as if all had the same": [(run_states, "states_to_flush", _forgets_the_part)],
    "a state is named by another attempt": [(run_states, "states_to_flush", _of_the_attempt_before)],
    "nothing is written": [(run_states, "states_to_flush", _nothing)],
    "a state goes to other ranks than its own": [
        (held_states, "_fits", _fits_any_rank),
        (Kept, "fetch", _fetches_any),
    ],
    "checksums of files are ignored": [(Kept, "_is_found_damaged", _ignores_damage)],
    "a damaged file is chosen again and again": [(RunStates, "misses", _misses_nothing)],
}


class PlantedKept(Plant):
    """Kept states that have this bug."""

    def __init__(self, bug: str) -> None:
        self._bug = bug

    def places(self) -> list[tuple[Any, str, Any]]:
        return KEPT_BUGS[self._bug]
