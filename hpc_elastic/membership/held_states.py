"""Which training state in memory an attempt begins with: the newest that every node of it holds, or none.

Roles that restart together, and share a store, begin with the same step, and each of their nodes must hold it. A role
that restarts alone, or whose failures are ignored, is chosen for by itself. A state that belongs to its ranks fits only
a node that has the same part in a world of the same size; one that is the same on all ranks fits every node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hpc_elastic.membership.messages import Assign
from hpc_elastic.rundir.records import World, WorldNode
from hpc_elastic.rundir.state_records import ChosenState, HeldState, StateVersion

Held = Mapping[str, tuple[HeldState, ...]]  # by node


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChoice:
    """What the roles that start begin with, and the lines that say so, or why there is none."""

    states: tuple[ChosenState, ...]
    lines: tuple[str, ...]


def part_of(assign: Assign) -> str:
    """Return a node's part in a world, as text that is equal if each of its ranks has the same place."""
    return _part(
        assign.role,
        assign.first_rank,
        assign.workers,
        assign.world_size,
        assign.first_role_rank,
        assign.role_world_size,
    )


def choose_states(
    world: World, roles: Iterable[str], held: Held, *, distrusted: Iterable[StateVersion] = ()
) -> StateChoice:
    """Return the states with which these roles of a world start.

    Args:
        world: the world of the attempt.
        roles: the roles that start in it.
        held: the states that each node holds, by its name.
        distrusted: states after whose loading the same failure came again before any newer one was saved by all.
    """
    states, lines, starting = [], [], set(roles)
    for group in _groups(world):
        if not set(group) <= starting:
            continue
        nodes = [node for node in world.nodes if node.role in group]
        if not any(held.get(node.node) for node in nodes):
            continue
        common = set.intersection(*(_versions(world, node, held.get(node.node, ())) for node in nodes))
        whose = "" if len(world.roles) == 1 else f" of {' and '.join(group)}"
        newest = max(common, default=None)
        if newest is None:
            lines.append(f"all ranks{whose} load from disk: {_why_none(world, nodes, held)}")
        elif newest in set(distrusted):
            again = f"the same failure came again after step {newest.step} was loaded from memory"
            lines.append(f"all ranks{whose} load from disk: {again}")
        else:
            states.append(ChosenState(roles=group, attempt=newest.attempt, step=newest.step))
            lines.append(f"all ranks{whose} can go on at step {newest.step}, which is in memory")
    return StateChoice(states=tuple(states), lines=tuple(lines))


def state_for(states: Iterable[ChosenState], role: str) -> StateVersion | None:
    """Return the state with which a role begins, None if there is none."""
    return next((state.version for state in states if role in state.roles), None)


def _groups(world: World) -> list[tuple[str, ...]]:
    together = tuple(role.role for role in world.roles if role.restart == "restart_all")
    alone: list[tuple[str, ...]] = [(role.role,) for role in world.roles if role.restart != "restart_all"]
    return [together, *alone] if together else alone


def _versions(world: World, node: WorldNode, held: Iterable[HeldState]) -> set[StateVersion]:
    part = _part_in(world, node)
    return {state.version for state in held if state.part in (None, part)}


def _part_in(world: World, node: WorldNode) -> str:
    role = next(role for role in world.roles if role.role == node.role)
    first_role_rank = world.ranks[node.first_rank].role_rank
    return _part(node.role, node.first_rank, node.workers, len(world.ranks), first_role_rank, role.size)


def _part(role: str, first: int, workers: int, world_size: int, first_role_rank: int, role_size: int) -> str:
    return f"{first}+{workers}/{world_size} {first_role_rank}/{role_size} {role}"


def _why_none(world: World, nodes: list[WorldNode], held: Held) -> str:
    empty = [node.node for node in nodes if not held.get(node.node)]
    if empty:
        more = f" and {len(empty) - 1} more" if len(empty) > 1 else ""
        return f"{empty[0]}{more} {'hold' if more else 'holds'} no state in memory"
    misfits = [node.node for node in nodes if not _versions(world, node, held[node.node])]
    if misfits:
        return f"the states in memory belong to other ranks than {misfits[0]} has now"
    return "no step is in the memory of all of them"
