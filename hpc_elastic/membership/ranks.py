"""Ranks of a world: which node gets which global, group and role ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpc_elastic.rundir.records import Endpoint, World, WorldNode, WorldRank


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A node that takes part: what it brings to the world."""

    node: str
    node_id: int
    agent: Endpoint
    store_port: int
    workers: int
    role: str


def assign_ranks(seats: Sequence[Seat], *, run: str, attempt: int, allocation: int, head: str) -> World:
    """Gives every worker its ranks, in the order of the node ids.

    Global ranks count through the nodes; role ranks count through the nodes of the same role, as
    torch's `_assign_worker_ranks` does. The store is on the node of rank 0.
    """
    ordered = sorted(seats, key=lambda seat: seat.node_id)
    nodes: list[WorldNode] = []
    ranks: list[WorldRank] = []
    role_sizes: dict[str, int] = {}
    for seat in ordered:
        nodes.append(
            WorldNode(
                node=seat.node, node_id=seat.node_id, agent=seat.agent, first_rank=len(ranks), workers=seat.workers
            )
        )
        for local_rank in range(seat.workers):
            role_rank = role_sizes.get(seat.role, 0)
            role_sizes[seat.role] = role_rank + 1
            ranks.append(
                WorldRank(rank=len(ranks), node=seat.node, local_rank=local_rank, role=seat.role, role_rank=role_rank)
            )
    return World(
        run=run,
        attempt=attempt,
        allocation=allocation,
        head=head,
        master=Endpoint(address=ordered[0].agent.address, port=ordered[0].store_port),
        nodes=tuple(nodes),
        ranks=tuple(ranks),
    )


def role_sizes(world: World) -> dict[str, int]:
    """How many workers each role of a world has."""
    sizes: dict[str, int] = {}
    for rank in world.ranks:
        sizes[rank.role] = sizes.get(rank.role, 0) + 1
    return sizes
