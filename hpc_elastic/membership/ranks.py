"""Ranks of a world: which node gets which global, group and role ranks, and which store.

A node that stays keeps its place and its role, but for a spare that is called back to its own role: it is a
newcomer of that one. In the first world of an allocation nodes are in the order of their ids. In each later world, the
nodes of the world before that are still here are in the order that they had. The place of a node that is gone is taken
by a newcomer of the same role with as many workers, so that no other node's ranks change; if there is none, by a
newcomer of the same role with another number of workers; if there is none either, by a spare of another role, which
gets the role and the number of workers of the place, in roles that have too few nodes first; else the other nodes close
up. Newcomers that found no such place come last, while there is room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from hpc_elastic.rundir.records import Endpoint, World, WorldNode, WorldRank, WorldRole

T = TypeVar("T", "Seat", WorldNode)

RESTARTS_ALONE = "restart_role"  # such a role has a store of its own, which no other role's restart takes away


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A node that can take part, and what it brings to the world.

    `is_asked_last`: it was unhealthy before, so other newcomers are taken in first.
    """

    node: str
    node_id: int
    agent: Endpoint
    store_port: int
    workers: int
    role: str
    is_asked_last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLimits:
    """The number of nodes that may take part: in all, and of each role; a role that is left out has no own limit.

    `least_of_role`: the number of nodes that each role needs.
    """

    all_nodes: int
    of_role: Mapping[str, int] = field(default_factory=dict)
    least_of_role: Mapping[str, int] = field(default_factory=dict)


NO_LIMITS = NodeLimits(all_nodes=2**31)


def assign_worker_ranks(
    seats: Sequence[Seat],
    *,
    run: str,
    attempt: int,
    allocation: int,
    head: str,
    restarts: Mapping[str, str],
    before: World | None = None,
    limits: NodeLimits = NO_LIMITS,
) -> World:
    """Choose the nodes that take part, and give every worker its ranks.

    Global ranks count through the nodes; role ranks count through the nodes of the same role, as
    torch's `_assign_worker_ranks` does. The store is on the node of rank 0; a role that restarts
    alone has one of its own, on its first node.

    Args:
        seats: the nodes that are here, in any order.
        run: the run's name.
        attempt: the attempt's number.
        allocation: the allocation's number.
        head: the head's node.
        restarts: the restart policy of each role by its name; `restart_all` for one that is left out.
        before: the world of the attempt before, None for the first one of an allocation.
        limits: how many nodes may take part.
    """
    chosen = _choose(seats, before, limits, head)
    nodes: list[WorldNode] = []
    ranks: list[WorldRank] = []
    sizes: dict[str, int] = {}
    for seat in chosen:
        nodes.append(
            WorldNode(
                node=seat.node,
                node_id=seat.node_id,
                role=seat.role,
                agent=seat.agent,
                first_rank=len(ranks),
                workers=seat.workers,
            )
        )
        for local_rank in range(seat.workers):
            role_rank = sizes.get(seat.role, 0)
            sizes[seat.role] = role_rank + 1
            ranks.append(
                WorldRank(rank=len(ranks), node=seat.node, local_rank=local_rank, role=seat.role, role_rank=role_rank)
            )
    policies = {role: restarts.get(role, "restart_all") for role in sizes}
    return World(
        run=run,
        attempt=attempt,
        allocation=allocation,
        head=head,
        roles=_roles(chosen, sizes, policies, attempt),
        nodes=tuple(nodes),
        ranks=tuple(ranks),
    )


def find_swaps(before: World | None, world: World) -> list[tuple[str, str]]:
    """Return each newcomer that has the place of a node of the world before, paired with that node."""
    if before is None:
        return []
    places, _ = _fill_places(before.nodes, world.nodes, world.head)
    pairs = ((node.node, old.node) for node, old in zip(places, before.nodes, strict=True) if node is not None)
    return [(newcomer, gone) for newcomer, gone in pairs if newcomer != gone]


def restart_roles(world: World, roles: Collection[str], seats: Sequence[Seat]) -> World:
    """Return the same world for its next attempt, in which only these roles start; the others run on.

    Args:
        world: the world of the attempt before.
        roles: the roles whose workers start.
        seats: the same nodes, with the ports of the next stores.
    """
    attempt, ports = world.attempt + 1, {seat.node: seat.store_port for seat in seats}
    again = [
        replace(role, attempt=attempt, master=replace(role.master, port=ports[role.master_node]))
        if role.role in roles
        else role
        for role in world.roles
    ]
    return replace(world, attempt=attempt, roles=tuple(again))


def _choose(seats: Sequence[Seat], before: World | None, limits: NodeLimits, head: str) -> list[Seat]:
    """Return the nodes that take part, by group rank: those of the world before, then newcomers.

    The head comes before the other newcomers, so that it is among them wherever there is a place of its role.
    """
    places, newcomers = _fill_places(before.nodes if before is not None else (), seats, head)
    if before is not None:
        _move_spares(before.nodes, places, newcomers, seats, limits)
    chosen = [seat for seat in places if seat is not None]
    sizes = Counter(seat.role for seat in chosen)
    for seat in newcomers:
        if len(chosen) < limits.all_nodes and sizes[seat.role] < limits.of_role.get(seat.role, limits.all_nodes):
            chosen.append(seat)
            sizes[seat.role] += 1
    return chosen if before is not None else sorted(chosen, key=lambda seat: seat.node_id)


def _fill_places(old: Sequence[WorldNode], seats: Sequence[T], head: str) -> tuple[list[T | None], list[T]]:
    """Return the node for each place of the world before, None for an empty place, and the other newcomers.

    A head that is new comes first, the others by id.
    """
    roles = {node.node: node.role for node in old}
    staying = {seat.node: seat for seat in seats if roles.get(seat.node) == seat.role}
    places: list[T | None] = [staying.get(node.node) for node in old]
    others = (seat for seat in seats if seat.node not in staying)
    newcomers = sorted(others, key=lambda seat: (_is_asked_last(seat), seat.node != head, seat.node_id))
    fits: Sequence[Callable[[WorldNode, T], bool]] = (
        lambda gone, seat: (gone.role, gone.workers) == (seat.role, seat.workers),
        lambda gone, seat: gone.role == seat.role,
    )
    for is_fit in fits:
        for place, gone in enumerate(old):
            found = next((seat for seat in newcomers if is_fit(gone, seat)), None) if places[place] is None else None
            if found is not None:
                places[place] = found
                newcomers.remove(found)
    return places, newcomers


def _move_spares(
    old: Sequence[WorldNode],
    places: list[Seat | None],
    newcomers: list[Seat],
    seats: Sequence[Seat],
    limits: NodeLimits,
) -> None:
    """Give places that are still empty to spares of other roles, which are taken out of the newcomers.

    A spare is a newcomer of a role of which there are more nodes than the world may have.
    """
    here = Counter(seat.role for seat in seats)
    surplus = {role: count - limits.of_role.get(role, limits.all_nodes) for role, count in here.items()}
    taken = Counter(seat.role for seat in places if seat is not None)
    empty = [place for place, seat in enumerate(places) if seat is None]
    for place in sorted(
        empty, key=lambda place: taken[old[place].role] >= limits.least_of_role.get(old[place].role, 0)
    ):
        spare = next((seat for seat in newcomers if surplus[seat.role] > 0), None)
        if spare is None:
            return
        newcomers.remove(spare)
        surplus[spare.role] -= 1
        places[place] = replace(spare, role=old[place].role, workers=old[place].workers)


def _is_asked_last(node: Seat | WorldNode) -> bool:
    return isinstance(node, Seat) and node.is_asked_last


def _roles(
    seats: Sequence[Seat], sizes: Mapping[str, int], policies: Mapping[str, str], attempt: int
) -> tuple[WorldRole, ...]:
    roles = []
    for role, size in sizes.items():
        is_alone = policies[role] == RESTARTS_ALONE
        sharing = [seat for seat in seats if (seat.role == role if is_alone else policies[seat.role] != RESTARTS_ALONE)]
        first = sharing[0]
        roles.append(
            WorldRole(
                role=role,
                size=size,
                restart=policies[role],
                master=Endpoint(address=first.agent.address, port=first.store_port),
                master_node=first.node,
                attempt=attempt,
            )
        )
    return tuple(roles)
