"""Ranks of uneven nodes, as torch assigns them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.membership.messages import Assign
from hpc_elastic.membership.ranks import Seat, assign_worker_ranks, restart_roles
from hpc_elastic.membership.rounds import assignments
from hpc_elastic.rundir.records import Endpoint, World


def seats(workers: Sequence[int], roles: Sequence[str] = (), ids: Sequence[int] = ()) -> list[Seat]:
    return [
        Seat(
            node=f"node{node_id}",
            node_id=node_id,
            agent=Endpoint(address=f"10.0.0.{node_id}", port=1),
            store_port=100 + node_id,
            workers=count,
            role=role,
        )
        for node_id, count, role in zip(
            ids or range(len(workers)), workers, roles or ["default"] * len(workers), strict=True
        )
    ]


def world_of(taken: Sequence[Seat]) -> World:
    return assign_worker_ranks(taken, run="run", attempt=1, allocation=1, head="node0", restarts={})


def torchs_assignments(taken: Sequence[Seat]) -> list[tuple[int, int, int, int, int]]:
    """torch's rule, from `SimpleElasticAgent._assign_worker_ranks`: prefix sums over the agents' records.

    A worker's global rank, local rank, role rank, role world size, world size.
    """
    records = sorted(taken, key=lambda seat: seat.node_id)
    rows = []
    for index, record in enumerate(records):
        same = [other for other in records if other.role == record.role]
        before = [other for other in records[:index] if other.role == record.role]
        for local_rank in range(record.workers):
            rows.append(
                (
                    sum(other.workers for other in records[:index]) + local_rank,
                    local_rank,
                    sum(other.workers for other in before) + local_rank,
                    sum(other.workers for other in same),
                    sum(other.workers for other in records),
                )
            )
    return rows


@given(
    st.lists(st.tuples(st.integers(1, 9), st.sampled_from(["trainer", "reader"])), min_size=1, max_size=12),
    st.randoms(use_true_random=False),
)
def test_ranks_follow_torchs_rule_for_uneven_nodes(nodes: list[tuple[int, str]], random: object) -> None:
    taken = seats([count for count, _ in nodes], [role for _, role in nodes])
    expected = torchs_assignments(taken)
    getattr(random, "shuffle")(taken)  # noqa: B009 - hypothesis types it as Random only for checkers
    world = world_of(taken)
    sizes = {role.role: role.size for role in world.roles}
    found = [(r.rank, r.local_rank, r.role_rank, sizes[r.role], len(world.ranks)) for r in world.ranks]
    assert found == expected


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12))
def test_each_nodes_part_has_its_own_ranks_of_the_world(workers: list[int]) -> None:
    world = world_of(seats(workers))
    parts: list[Assign] = list(assignments(world, "digest").values())
    ranks = [part.first_rank + local for part in parts for local in range(part.workers)]
    assert ranks == list(range(sum(workers)))
    assert [part.group_rank for part in parts] == list(range(len(workers)))
    assert {part.role_world_size for part in parts} == {sum(workers)}


def test_nodes_are_in_the_order_of_their_ids_not_of_their_names_or_arrival() -> None:
    world = world_of(seats([1, 1, 1], ids=[10, 2, 1]))
    assert [node.node for node in world.nodes] == ["node1", "node2", "node10"]


def test_the_store_is_on_the_node_of_rank_0() -> None:
    (role,) = world_of(seats([1, 1], ids=[7, 3])).roles
    assert (role.master, role.master_node) == (Endpoint(address="10.0.0.3", port=103), "node3")


def test_a_role_that_restarts_alone_has_a_store_on_its_own_first_node() -> None:
    taken = seats([1, 1, 1, 1], ["reader", "trainer", "trainer", "watcher"])
    world = assign_worker_ranks(
        taken,
        run="run",
        attempt=1,
        allocation=1,
        head="node0",
        restarts={"reader": "restart_role", "trainer": "restart_all", "watcher": "ignore"},
    )
    nodes = [node.node for node in world.nodes]
    assert {role.role: role.master_node for role in world.roles} == {
        "reader": nodes[0],
        "trainer": nodes[1],
        "watcher": nodes[1],
    }
    parts = assignments(world, "digest")
    assert [parts[node].serves_store for node in nodes] == [True, True, False, False]
    assert [parts[node].is_failure_ignored for node in nodes] == [False, False, False, True]


def test_a_restart_of_a_role_keeps_all_ranks_and_gives_it_a_new_store() -> None:
    taken = seats([2, 1, 1], ["reader", "reader", "trainer"])
    world = assign_worker_ranks(
        taken, run="run", attempt=3, allocation=1, head="node0", restarts={"reader": "restart_role"}
    )
    later = [replace(seat, store_port=seat.store_port + 1000) for seat in taken]
    again = restart_roles(world, {"reader"}, later)
    assert (again.attempt, again.ranks, again.nodes) == (4, world.ranks, world.nodes)
    reader, trainer = again.roles
    assert (reader.attempt, reader.master.port) == (4, world.roles[0].master.port + 1000)
    assert trainer == world.roles[1]
    assert list(assignments(again, "digest")) == [node.node for node in world.nodes[:2]]
