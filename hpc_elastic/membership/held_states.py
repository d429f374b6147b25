"""Which training state an attempt begins with, and which one is kept when the allocation ends: the newest common one.

A node has what is in its memory, and what was written to the run directory when the allocation before ended. Roles that
restart together, and share a store, begin with the same step, and each of their nodes must hold it. A role that
restarts alone, or whose failures are ignored, is chosen for by itself. A state that belongs to its ranks fits only
a node that has the same part in a world of the same size; one that is the same on all ranks fits every node.

When the allocation ends, the newest common state is written, so that the next one can begin with it: each rank's by its
node, one that is the same on all ranks by the first node that holds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hpc_elastic.membership.messages import Assign
from hpc_elastic.rundir.records import World, WorldNode
from hpc_elastic.rundir.state_records import OF_ANOTHER_RUN, ChosenState, Flush, HeldState, KeptState, StateVersion

KEPT = "was kept when the last allocation ended"
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


def rank_places(assign: Assign) -> tuple[str, ...]:
    """Return whose the state of each local rank is in a file, as text that is equal for the same place in a world."""
    return tuple(
        _place(
            assign.first_rank + local_rank,
            assign.world_size,
            assign.role,
            assign.first_role_rank + local_rank,
            assign.role_world_size,
        )
        for local_rank in range(assign.workers)
    )


def shared_place(role: str) -> str:
    """Return whose a state in a file is that is the same on all ranks of a role."""
    return f"* {role}"


def choose_states(
    world: World,
    roles: Iterable[str],
    held: Held,
    *,
    distrusted: Iterable[StateVersion] = (),
    kept: Sequence[KeptState] = (),
) -> StateChoice:
    """Return the states with which these roles of a world start.

    Args:
        world: the world of the attempt.
        roles: the roles that start in it.
        held: the states that each node holds, by its name.
        distrusted: states after whose loading the same failure came again before any newer one was saved by all.
        kept: the states that the run directory has.
    """
    states, lines, starting, distrusted = [], [], set(roles), set(distrusted)
    for group in _groups(world):
        if not set(group) <= starting:
            continue
        nodes = [node for node in world.nodes if node.role in group]
        if not kept and not any(held.get(node.node) for node in nodes):
            continue
        in_memory = set.intersection(*(_versions(world, node, held.get(node.node, ())) for node in nodes))
        common = set.intersection(*(_versions(world, node, held.get(node.node, ()), kept) for node in nodes))
        whose = "" if len(world.roles) == 1 else f" of {' and '.join(group)}"
        newest = max(common, default=None)
        if newest is None:
            lines.append(f"all ranks{whose} load from disk: {_why_none(world, nodes, held, kept)}")
        elif newest in distrusted:
            again = f"the same failure came again after step {newest.step} was loaded from memory"
            lines.append(f"all ranks{whose} load from disk: {again}")
        else:
            states.append(ChosenState(roles=group, attempt=newest.attempt, step=newest.step))
            files = "another run has kept" if newest.attempt == OF_ANOTHER_RUN else KEPT
            where = "is in memory" if newest in in_memory else files
            lines.append(f"all ranks{whose} can go on at step {newest.step}, which {where}")
    return StateChoice(states=tuple(states), lines=tuple(lines))


def states_to_flush(world: World, held: Held, ended: int) -> dict[str, Flush]:
    """Return which state each node writes when the allocation ends, by node: the newest that the whole group holds.

    Args:
        world: the latest world.
        held: the states that each node holds, by its name; those of lost nodes are missing.
        ended: the latest attempt.
    """
    flushes = {}
    for group in _groups(world):
        nodes = {role: [node for node in world.nodes if node.role == role] for role in group}
        newest = max(set.intersection(*(_whole(world, each, held) for each in nodes.values())), default=None)
        if newest is None:
            continue
        for each in nodes.values():
            shared = [node for node in each if _has_shared(held.get(node.node, ()), newest)]
            for node in shared[:1] or each:
                flushes[node.node] = Flush(ended=ended, state=newest)
    return flushes


def _whole(world: World, nodes: list[WorldNode], held: Held) -> set[StateVersion]:
    """Return the states of a role of which these nodes have all parts."""
    parts = set.intersection(*(_versions(world, node, held.get(node.node, ())) for node in nodes))
    shared = (state.version for node in nodes for state in held.get(node.node, ()) if state.part is None)
    return parts.union(shared)


def _has_shared(held: Iterable[HeldState], version: StateVersion) -> bool:
    return any(state.part is None and state.version == version for state in held)


def state_for(states: Iterable[ChosenState], role: str) -> StateVersion | None:
    """Return the state with which a role begins, None if there is none."""
    return next((state.version for state in states if role in state.roles), None)


def _groups(world: World) -> list[tuple[str, ...]]:
    together = tuple(role.role for role in world.roles if role.restart == "restart_all")
    alone: list[tuple[str, ...]] = [(role.role,) for role in world.roles if role.restart != "restart_all"]
    return [together, *alone] if together else alone


def _versions(
    world: World, node: WorldNode, held: Iterable[HeldState], kept: Sequence[KeptState] = ()
) -> set[StateVersion]:
    """Return the states with which a node can begin."""
    part, found = _part_in(world, node), {state.version for state in kept if _fits(world, node, state)}
    return found.union(state.version for state in held if state.part in (None, part))


def _fits(world: World, node: WorldNode, kept: KeptState) -> bool:
    """Return whether a state in files has the parts of all ranks of a node."""
    if shared_place(node.role) in kept.places:
        return True
    size, ranks = len(world.ranks), range(node.first_rank, node.first_rank + node.workers)
    role_size = next(role.size for role in world.roles if role.role == node.role)
    return all(_place(rank, size, node.role, world.ranks[rank].role_rank, role_size) in kept.places for rank in ranks)


def _place(rank: int, world_size: int, role: str, role_rank: int, role_size: int) -> str:
    return f"{rank}/{world_size} {role_rank}/{role_size} {role}"


def _part_in(world: World, node: WorldNode) -> str:
    role = next(role for role in world.roles if role.role == node.role)
    first_role_rank = world.ranks[node.first_rank].role_rank
    return _part(node.role, node.first_rank, node.workers, len(world.ranks), first_role_rank, role.size)


def _part(role: str, first: int, workers: int, world_size: int, first_role_rank: int, role_size: int) -> str:
    return f"{first}+{workers}/{world_size} {first_role_rank}/{role_size} {role}"


def _why_none(world: World, nodes: list[WorldNode], held: Held, kept: Sequence[KeptState]) -> str:
    if kept and not any(held.get(node.node) for node in nodes):
        what = "what another run has kept" if kept[0].version.attempt == OF_ANOTHER_RUN else f"what {KEPT}"
        return f"{what} is not all there, or is that of other ranks"
    empty = [node.node for node in nodes if not held.get(node.node)]
    if empty:
        more = f" and {len(empty) - 1} more" if len(empty) > 1 else ""
        return f"{empty[0]}{more} {'hold' if more else 'holds'} no state in memory"
    misfits = [node.node for node in nodes if not _versions(world, node, held[node.node])]
    if misfits:
        return f"the states in memory belong to other ranks than {misfits[0]} has now"
    return "no step is in the memory of all of them"
