"""Bugs in how the state of an attempt is chosen, kept and checked, each of which the rules of `states` must find."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from hpc_elastic.membership import run_states
from hpc_elastic.membership.held_states import Held, StateChoice, choose_states, shared_place
from hpc_elastic.membership.run_states import RunStates
from hpc_elastic.rundir.records import World
from hpc_elastic.rundir.state_records import ChosenState, StateVersion
from hpc_elastic.state_memory import choose_slot
from tests.simulation.plant import Plant
from tests.simulation.rules.states import NodeStates, Saved, slot_states
from tests.simulation.workers import Worker


def _of_the_first_node(world: World, roles: Iterable[str], held: Held, **more: Any) -> StateChoice:
    """What one node holds is taken for what all hold."""
    names = [node.node for node in world.nodes if held.get(node.node)]
    return choose_states(world, roles, {node.node: held[names[0]] for node in world.nodes} if names else held, **more)


def _of_any_rank(world: World, roles: Iterable[str], held: Held, **more: Any) -> StateChoice:
    """A state goes to whoever has a part now."""
    whose = {node.node: shared_place(node.role) for node in world.nodes}
    freed = {
        node: tuple(replace(each, part=whose.get(node, each.part)) for each in states) for node, states in held.items()
    }
    return choose_states(world, roles, freed, **more)


def _of_any_role(world: World, roles: Iterable[str], held: Held, **more: Any) -> StateChoice:
    """What is the same on all ranks of a role goes to those of another one, too."""
    whose = {node.node: shared_place(node.role) for node in world.nodes}
    freed = {
        node: tuple(
            replace(each, part=whose.get(node, each.part)) if each.part.startswith("* ") else each for each in states
        )
        for node, states in held.items()
    }
    return choose_states(world, roles, freed, **more)


def _is_anybodys(self: NodeStates, wanted: str, here: str) -> bool:
    return True


def _the_oldest(world: World, roles: Iterable[str], held: Held, **more: Any) -> StateChoice:
    oldest = {node: states and (min(states, key=lambda each: each.version),) for node, states in held.items()}
    return choose_states(world, roles, oldest, **more)


def _forgets_nothing(self: NodeStates, but: StateVersion | None) -> None:
    """What was saved after the step that is loaded stays ..."""


def _only_the_step(self: NodeStates, worker: Worker, step: int) -> StateVersion:
    """... and cannot be told from what the attempt saves at the same step."""
    return StateVersion(attempt=1, step=step)


def _overwrites_the_newest(self: NodeStates, slots: list[Saved | None], touched: set[int]) -> int:
    held = slot_states(slots)
    return held[0].slot if len(held) > 1 else choose_slot(held, touched, 0)


def _first_slot(self: NodeStates, slots: list[Saved | None], touched: set[int]) -> int:
    return 0


def _ignores_damage(self: NodeStates, saved: Saved) -> bool:
    return False


def _trusts_all(self: RunStates, role: str | None, begun: Iterable[ChosenState], signature: str | None) -> None:
    """What has failed as before begins with the same state, time and again."""


STATE_BUGS: dict[str, list[tuple[Any, str, Any]]] = {
    "one node's state is taken for everybody's": [(run_states, "choose_states", _of_the_first_node)],
    "a state is given to other ranks than its own": [(run_states, "choose_states", _of_any_rank)],
    "a state that is the same on all ranks of a role is given to another role": [
        (run_states, "choose_states", _of_any_role),
        (NodeStates, "_is_its_own", _is_anybodys),
    ],
    "a state with which the same failure came again is trusted": [(RunStates, "failed_again", _trusts_all)],
    "the oldest state is chosen": [(run_states, "choose_states", _the_oldest)],
    "steps of two attempts are the same": [
        (NodeStates, "_forget", _forgets_nothing),
        (NodeStates, "_version", _only_the_step),
    ],
    "one slot": [(NodeStates, "_victim", _first_slot)],
    "the newest state is overwritten": [(NodeStates, "_victim", _overwrites_the_newest)],
    "checksums are ignored": [(NodeStates, "_is_found_damaged", _ignores_damage)],
}


class PlantedState(Plant):
    """States that have this bug."""

    def __init__(self, bug: str) -> None:
        self._bug = bug

    def places(self) -> list[tuple[Any, str, Any]]:
        return STATE_BUGS[self._bug]
