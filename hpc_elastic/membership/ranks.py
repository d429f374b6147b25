"""Ranks of a world: which node gets which global, group and role ranks, and which store."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from hpc_elastic.rundir.records import Endpoint, World, WorldNode, WorldRank, WorldRole

RESTARTS_ALONE = "restart_role"  # such a role has a store of its own, which no other role's restart takes away


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A node that takes part: what it brings to the world."""

    node: str
    node_id: int
    agent: Endpoint
    store_port: int
    workers: int
    role: str


def assign_worker_ranks(
    seats: Sequence[Seat], *, run: str, attempt: int, allocation: int, head: str, restarts: Mapping[str, str]
) -> World:
    """Gives every worker its ranks, in the order of the node ids.

    Global ranks count through the nodes; role ranks count through the nodes of the same role, as
    torch's `_assign_worker_ranks` does. The store is on the node of rank 0; a role that restarts
    alone has one of its own, on its first node.

    Args:
        seats: the nodes.
        run: the run's name.
        attempt: the attempt's number.
        allocation: the allocation's number.
        head: the head's node.
        restarts: the restart policy of each role by its name; `restart_all` for one that is left out.
    """
    nodes: list[WorldNode] = []
    ranks: list[WorldRank] = []
    sizes: dict[str, int] = {}
    for seat in sorted(seats, key=lambda seat: seat.node_id):
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
        roles=_roles(seats, sizes, policies, attempt),
        nodes=tuple(nodes),
        ranks=tuple(ranks),
    )


def restart_roles(world: World, roles: Collection[str], seats: Sequence[Seat]) -> World:
    """The next attempt of the same world, in which only these roles start; the others run on.

    Args:
        world: of the attempt before.
        roles: whose workers start.
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


def _roles(
    seats: Sequence[Seat], sizes: Mapping[str, int], policies: Mapping[str, str], attempt: int
) -> tuple[WorldRole, ...]:
    ordered = sorted(seats, key=lambda seat: seat.node_id)
    roles = []
    for role, size in sizes.items():
        is_alone = policies[role] == RESTARTS_ALONE
        sharing = [
            seat for seat in ordered if (seat.role == role if is_alone else policies[seat.role] != RESTARTS_ALONE)
        ]
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
