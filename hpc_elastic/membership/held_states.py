"""Which training state an attempt begins with, and which one is kept when the allocation ends: the newest common one.

A node has what is in its memory, and what was written to the run directory when the allocation before ended. Roles that
restart together, and share a store, begin with the same step, and each of their nodes must hold it. A role that
restarts alone, or whose failures are ignored, is chosen for by itself. A state that belongs to its ranks fits only
a node that has the same part in a world of the same size; one that is the same on all ranks fits every node of the role
that has saved it.

A node that has not got the state can fetch it from another node's keeper: from the one that holds a copy of what its
ranks had saved, wherever they were, or from any node of its role if the state is the same on all ranks.

When the allocation ends, the newest common state is written, so that the next one can begin with it: each rank's by its
node, one that is the same on all ranks by the first node that holds it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hpc_elastic.membership.messages import Assign
from hpc_elastic.rundir.records import World, WorldNode
from hpc_elastic.rundir.state_records import OF_ANOTHER_RUN, ChosenState, Flush, HeldState, KeptState, StateVersion

KEPT = "was kept when the last allocation ended"
Held = Mapping[str, tuple[HeldState, ...]]  # by node
MOST_HOLDERS = 3  # that a node asks for a state


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChoice:
    """What the roles that start begin with, and the lines that say so, or why there is none.

    `sources` are the nodes from which each node gets it that has not got it, the first to be asked first.
    """

    states: tuple[ChosenState, ...]
    lines: tuple[str, ...]
    sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


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


def ranks_of(part: str) -> list[tuple[int, str]]:
    """Return the ranks of a node's part of a world, and whose the state of each is in a file.

    Raises:
        ValueError: the text is no part.
    """
    ranks, role_ranks, role = part.split(" ", 2)
    span, _, world_size = ranks.partition("/")
    first, _, workers = span.partition("+")
    first_role_rank, _, role_size = role_ranks.partition("/")
    sizes = int(world_size), int(role_size)
    return [
        (int(first) + each, _place(int(first) + each, sizes[0], role, int(first_role_rank) + each, sizes[1]))
        for each in range(int(workers))
    ]


def shared_place(role: str) -> str:
    """Return whose a state is that is the same on all ranks of a role, in memory and in a file."""
    return f"* {role}"


def role_of(place: str) -> str:
    """Return the role whose a state is, by the text that names its part, its place, or the role itself."""
    return place.removeprefix("* ") if place.startswith("* ") else place.split(" ", 2)[-1]


def choose_states(
    world: World,
    roles: Iterable[str],
    held: Held,
    *,
    distrusted: Collection[ChosenState] = (),
    kept: Sequence[KeptState] = (),
    keepers: Collection[str] = (),
    at_odds: Collection[str] = (),
) -> StateChoice:
    """Return the states with which these roles of a world start.

    Args:
        world: the world of the attempt.
        roles: the roles that start in it.
        held: the states that each node holds, by its name.
        distrusted: states after whose loading by these roles the same failure came again, before any newer one was
            saved by all.
        kept: the states that the run directory has.
        keepers: the nodes from which others can fetch what they hold.
        at_odds: the nodes whose ranks have saved, and have no step in common.
    """
    states, lines, starting = [], [], set(roles)
    sources: dict[str, tuple[str, ...]] = {}
    holders = _holders(held, keepers)
    for group in _groups(world):
        if not set(group) <= starting:
            continue
        nodes = [node for node in world.nodes if node.role in group]
        here = {node.node: _versions(world, node, held.get(node.node, ())) for node in nodes}
        elsewhere = {node.node: _fetchable(world, node, holders) for node in nodes}
        if not kept and not any(held.get(node.node) or elsewhere[node.node] or node.node in at_odds for node in nodes):
            continue
        in_memory = set.intersection(*(here[node.node].union(elsewhere[node.node]) for node in nodes))
        common = set.intersection(
            *(_versions(world, node, (), kept).union(here[node.node], elsewhere[node.node]) for node in nodes)
        )
        whose = "" if len(world.roles) == 1 else f" of {' and '.join(group)}"
        newest = max(common, default=None)
        if newest is None:
            lines.append(f"all ranks{whose} load from disk: {_why_none(world, nodes, held, elsewhere, at_odds, kept)}")
        elif any(state.version == newest and not set(state.roles).isdisjoint(group) for state in distrusted):
            again = f"the same failure came again after step {newest.step} was loaded from memory"
            lines.append(f"all ranks{whose} load from disk: {again}")
        else:
            states.append(ChosenState(roles=group, attempt=newest.attempt, step=newest.step))
            files = "another run has kept" if newest.attempt == OF_ANOTHER_RUN else KEPT
            where = "is in memory" if newest in in_memory else files
            fetched = {
                node.node: _some(elsewhere[node.node][newest], node)
                for node in nodes
                if newest not in here[node.node] and newest in elsewhere[node.node]
            }
            sources.update(fetched)
            lines.append(f"all ranks{whose} can go on at step {newest.step}, which {where}{_from_where(fetched)}")
    return StateChoice(states=tuple(states), lines=tuple(lines), sources=sources)


def _holders(held: Held, keepers: Collection[str]) -> dict[str, dict[StateVersion, list[str]]]:
    """Return which nodes hold what others can fetch, by whose it is and by its version."""
    found: dict[str, dict[StateVersion, list[str]]] = {}
    for node in keepers:
        for part, version in dict.fromkeys((state.part, state.version) for state in held.get(node, ())):
            found.setdefault(part, {}).setdefault(version, []).append(node)
    return found


def _fetchable(
    world: World, node: WorldNode, holders: Mapping[str, dict[StateVersion, list[str]]]
) -> dict[StateVersion, list[str]]:
    """Return the states that a node can fetch, and from which nodes."""
    own, shared = holders.get(_part_in(world, node), {}), holders.get(shared_place(node.role), {})
    return {**shared, **own}


def _some(holders: list[str], node: WorldNode) -> tuple[str, ...]:
    """Return a few of the nodes that hold a state, each for another node first, if many ask for the same one.

    A node that has a copy of it, because its part was another node's, asks its own keeper first.
    """
    first = holders.index(node.node) if node.node in holders else node.first_rank % len(holders)
    return tuple([*holders[first:], *holders[:first]][:MOST_HOLDERS])


def _from_where(fetched: Mapping[str, tuple[str, ...]]) -> str:
    if len(fetched) > 1:
        return f"; {len(fetched)} nodes get it from others"
    said = (
        f"; {node} has a copy of it" if holders[0] == node else f"; {node} gets it from {holders[0]}"
        for node, holders in fetched.items()
    )
    return "".join(said)


def copy_targets(world: World, keepers: Iterable[str], domains: Mapping[str, str]) -> dict[str, str]:
    """Return to which node each node of a world sends copies of its states: the next one of those that start with it.

    Args:
        world: the world.
        keepers: the nodes that can send copies and take them.
        domains: what can fail as a whole and has the node in it, such as a rack, by node. As far as possible the next
            node in the order is one of another domain.
    """
    targets: dict[str, str] = {}
    able = set(keepers)
    for group in _groups(world):
        ring = [node.node for node in world.nodes if node.role in group and node.node in able]
        ring = _alternate(ring, domains)
        if len(ring) > 1:
            targets.update(zip(ring, [*ring[1:], ring[0]], strict=True))
    return targets


def _alternate(nodes: list[str], domains: Mapping[str, str]) -> list[str]:
    """Return the nodes in an order in which neighbours are of different domains, as far as that is possible."""
    by_domain: dict[str, list[str]] = {}
    for node in nodes:
        by_domain.setdefault(domains.get(node, ""), []).append(node)
    largest_first = sorted(by_domain.values(), key=len, reverse=True)
    in_turns = [node for each in largest_first for node in each]
    # Every other place is filled first: two of a domain meet only if it has more than half of all nodes.
    order: list[str] = [""] * len(nodes)
    for place, node in zip([*range(0, len(nodes), 2), *range(1, len(nodes), 2)], in_turns, strict=True):
        order[place] = node
    return order if len(by_domain) > 1 else nodes


def states_to_flush(world: World, held: Held, ended: int) -> dict[str, Flush]:
    """Return which state each node writes when the allocation ends, by node: the newest that the whole group holds.

    A part whose node is lost is written by a node that has a copy of it.

    Args:
        world: the latest world.
        held: the states that each node holds, by its name; those of lost nodes are missing.
        ended: the latest attempt.
    """
    flushes: dict[str, Flush] = {}
    copies = _copies(held)
    for group in _groups(world):
        nodes = {role: [node for node in world.nodes if node.role == role] for role in group}
        if (newest := _newest_whole(world, nodes, held, copies)) is None:
            continue
        for each in nodes.values():
            shared = [node for node in each if _has_shared(node, held.get(node.node, ()), newest)]
            for node in shared[:1] or each:
                part = _part_in(world, node)
                is_here = bool(shared) or newest in _versions(world, node, held.get(node.node, ()))
                writer = node.node if is_here else copies[part][newest]
                before = flushes.get(writer, Flush(ended=ended, state=newest))
                flushes[writer] = before if is_here else replace(before, copies=(*before.copies, part))
    return flushes


def why_not_flushed(world: World, held: Held, *, at_odds: Collection[str] = ()) -> tuple[str, ...]:
    """Return a line for each group of roles whose state cannot be written although nodes hold some.

    Args:
        world: the latest world.
        held: the states that each node holds, by its name; those of lost nodes are missing.
        at_odds: the nodes whose ranks have saved, and have no step in common.
    """
    lines, copies = [], _copies(held)
    for group in _groups(world):
        nodes = {role: [node for node in world.nodes if node.role == role] for role in group}
        every = [node for each in nodes.values() for node in each]
        has_some = any(held.get(node.node) or node.node in at_odds for node in every)
        if has_some and _newest_whole(world, nodes, held, copies) is None:
            whose = "" if len(world.roles) == 1 else f" of {' and '.join(group)}"
            elsewhere = {node.node: copies.get(_part_in(world, node), {}) for node in every}
            why = _why_none(world, every, held, elsewhere, at_odds)
            lines.append(f"no state{whose} is kept for the next allocation: {why}")
    return tuple(lines)


def _newest_whole(
    world: World,
    nodes: Mapping[str, list[WorldNode]],
    held: Held,
    copies: Mapping[str, Mapping[StateVersion, str]],
) -> StateVersion | None:
    """Return the newest state that all roles of a group hold, or others copies of it; None if there is none."""
    return max(set.intersection(*(_whole(world, each, held, copies) for each in nodes.values())), default=None)


def _copies(held: Held) -> dict[str, dict[StateVersion, str]]:
    """Return which node has a copy of a part's state, by part and version."""
    found: dict[str, dict[StateVersion, str]] = {}
    for node, states in held.items():
        for state in states:
            if state.is_copy:
                found.setdefault(state.part, {}).setdefault(state.version, node)
    return found


def _whole(
    world: World, nodes: list[WorldNode], held: Held, copies: Mapping[str, Mapping[StateVersion, str]]
) -> set[StateVersion]:
    """Return the states of a role of which these nodes have all parts, or others have copies of them."""
    parts = set.intersection(
        *(
            _versions(world, node, held.get(node.node, ())).union(copies.get(_part_in(world, node), ()))
            for node in nodes
        )
    )
    shared = (
        state.version
        for node in nodes
        for state in held.get(node.node, ())
        if state.part == shared_place(node.role) and not state.is_copy
    )
    return parts.union(shared)


def _has_shared(node: WorldNode, held: Iterable[HeldState], version: StateVersion) -> bool:
    whose = shared_place(node.role)
    return any(state.part == whose and state.version == version and not state.is_copy for state in held)


def state_for(states: Iterable[ChosenState], role: str) -> StateVersion | None:
    """Return the state with which a role begins, None if there is none."""
    return next((state.version for state in states if role in state.roles), None)


def role_groups(world: World) -> list[tuple[str, ...]]:
    """Return the roles that begin with the same step, together."""
    return _groups(world)


def _groups(world: World) -> list[tuple[str, ...]]:
    together = tuple(role.role for role in world.roles if role.restart == "restart_all")
    alone: list[tuple[str, ...]] = [(role.role,) for role in world.roles if role.restart != "restart_all"]
    return [together, *alone] if together else alone


def _versions(
    world: World, node: WorldNode, held: Iterable[HeldState], kept: Sequence[KeptState] = ()
) -> set[StateVersion]:
    """Return the states with which a node can begin."""
    found = {state.version for state in kept if _fits(world, node, state)}
    its_own = _part_in(world, node), shared_place(node.role)
    return found.union(state.version for state in held if state.part in its_own and not state.is_copy)


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


def _why_none(
    world: World,
    nodes: list[WorldNode],
    held: Held,
    elsewhere: Mapping[str, Mapping[StateVersion, object]],
    at_odds: Collection[str],
    kept: Sequence[KeptState] = (),
) -> str:
    """Return why nodes have no state in common; `elsewhere` are those that each could have from others."""
    if kept and not any(held.get(node.node) for node in nodes):
        what = "what another run has kept" if kept[0].version.attempt == OF_ANOTHER_RUN else f"what {KEPT}"
        return f"{what} is not all there, or is that of other ranks"
    without = [node.node for node in nodes if not _versions(world, node, held.get(node.node, ()))]
    nowhere = [node for node in without if not elsewhere.get(node)]
    apart = [node for node in nowhere if node in at_odds]
    empty = [node for node in nowhere if all(state.is_copy for state in held.get(node, ()))]
    if apart:
        return f"no step is in the memory of all ranks of {_and_more(apart)}"
    if empty:
        lack = "hold no state of their" if len(empty) > 1 else "holds no state of its"
        return f"{_and_more(empty)} {lack} ranks in memory"
    if nowhere:
        return f"the states in memory belong to other ranks than {nowhere[0]} has now"
    common = "no step is in the memory of all of them"
    if without:
        newest = max(elsewhere[without[0]])
        return f"{common}: what {without[0]} needs is only in others' memory, at step {newest.step} at the newest"
    return common


def _and_more(nodes: Sequence[str]) -> str:
    return f"{nodes[0]} and {len(nodes) - 1} more" if len(nodes) > 1 else nodes[0]
