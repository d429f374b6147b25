"""Ranks of uneven nodes, as torch assigns them; and who keeps them when nodes go and come."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.membership.actions import Note
from hpc_elastic.membership.messages import Assign
from hpc_elastic.membership.ranks import NO_LIMITS, NodeLimits, Seat, assign_worker_ranks, restart_roles
from hpc_elastic.membership.rounds import assignments, opening_notes
from hpc_elastic.rundir.records import Endpoint, World, WorldNode


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


def world_of(taken: Sequence[Seat], before: World | None = None, limits: NodeLimits = NO_LIMITS) -> World:
    return assign_worker_ranks(
        taken, run="run", attempt=1, allocation=1, head="node0", restarts={}, before=before, limits=limits
    )


def assigned(world: World) -> list[tuple[int, int, int, int, int]]:
    """Each worker's global rank, local rank, role rank, role world size, world size."""
    sizes = {role.role: role.size for role in world.roles}
    return [(r.rank, r.local_rank, r.role_rank, sizes[r.role], len(world.ranks)) for r in world.ranks]


def torchs_assignments(records: Sequence[Seat | WorldNode]) -> list[tuple[int, int, int, int, int]]:
    """torch's rule, from `SimpleElasticAgent._assign_worker_ranks`: prefix sums over the agents' records."""
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
def test_ranks_follow_torchs_rule_for_uneven_nodes(nodes: list[tuple[int, str]], chance: random.Random) -> None:
    taken = seats([count for count, _ in nodes], [role for _, role in nodes])
    expected = torchs_assignments(taken)
    chance.shuffle(taken)
    assert assigned(world_of(taken)) == expected


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


# Who stays keeps his place.


def names(world: World) -> list[str]:
    return [node.node for node in world.nodes]


def first_ranks(world: World) -> dict[str, int]:
    return {node.node: node.first_rank for node in world.nodes}


@pytest.mark.parametrize(
    ("here", "expected"),
    [
        ([0, 1, 2, 3], [0, 1, 2, 3]),
        ([0, 1, 3], [0, 1, 3]),  # the hole closes up
        ([0, 1, 3, 4], [0, 1, 4, 3]),  # a spare takes it
        ([1, 2, 3, 4, 5], [4, 1, 2, 3]),  # the lowest one, also of rank 0
        ([2, 3, 4, 5], [4, 5, 2, 3]),
        ([0, 1, 2, 3, 4, 5], [0, 1, 2, 3]),  # nobody makes room for a newcomer
    ],
)
def test_a_spare_takes_the_place_of_a_lost_node(here: list[int], expected: list[int]) -> None:
    spares = seats([1] * 6)
    limits = NodeLimits(all_nodes=4)
    before = world_of(spares, limits=limits)
    assert names(before) == ["node0", "node1", "node2", "node3"]
    after = world_of([spares[index] for index in here], before, limits)
    assert names(after) == [f"node{index}" for index in expected]


def test_a_world_that_shrank_grows_at_its_end() -> None:
    nodes = seats([1] * 4)
    shrunk = world_of([nodes[0], nodes[3]], world_of(nodes))
    assert names(world_of(nodes, shrunk)) == ["node0", "node3", "node1", "node2"]


def test_a_node_that_is_back_before_the_next_attempt_has_its_old_place() -> None:
    nodes = seats([1] * 3)
    before = world_of([nodes[2], nodes[0]], world_of([nodes[2]]))
    assert names(before) == ["node2", "node0"]
    again = [replace(seat, agent=Endpoint(address="10.9.9.9", port=2)) for seat in (nodes[0], nodes[2])]
    after = world_of(again, before)
    assert names(after) == ["node2", "node0"]
    assert {node.agent.address for node in after.nodes} == {"10.9.9.9"}


def test_a_newcomer_with_as_many_workers_is_better_than_one_with_a_lower_id() -> None:
    nodes = seats([2, 2, 1, 2])
    before = world_of(nodes[:2])
    assert names(world_of([nodes[1], nodes[2], nodes[3]], before, NodeLimits(all_nodes=2))) == ["node3", "node1"]
    assert names(world_of([nodes[1], nodes[2]], before, NodeLimits(all_nodes=2))) == ["node2", "node1"]


def test_a_world_has_no_more_nodes_than_the_run_may_have_whatever_their_roles() -> None:
    nodes = seats([1] * 4, ["reader", "reader", "trainer", "trainer"])
    assert names(world_of(nodes, limits=NodeLimits(all_nodes=3))) == ["node0", "node1", "node2"]


def test_only_a_spare_takes_a_place_of_another_role_and_no_role_outgrows_its_own_limit() -> None:
    nodes = seats([1] * 5, ["reader", "reader", "trainer", "trainer", "trainer"])
    limits = NodeLimits(all_nodes=4, of_role={"reader": 2, "trainer": 2})
    before = world_of(nodes, limits=limits)
    assert names(before) == ["node0", "node1", "node2", "node3"]
    assert names(world_of([nodes[0], *nodes[2:4]], before, limits)) == ["node0", "node2", "node3"]
    moved = world_of([nodes[0], *nodes[2:]], before, limits)
    assert [(node.node, node.role) for node in moved.nodes][:2] == [("node0", "reader"), ("node4", "reader")]
    assert names(moved) == ["node0", "node4", "node2", "node3"]
    assert names(world_of([*nodes[:3], nodes[4]], before, limits)) == ["node0", "node1", "node2", "node4"]


def test_a_spare_that_is_called_back_to_its_role_leaves_its_place_to_a_newcomer_and_moves_nobody() -> None:
    nodes = seats([1] * 5, ["trainer", "reader", "watcher", "watcher", "watcher"])
    limits = NodeLimits(all_nodes=4, of_role={"trainer": 1, "reader": 1, "watcher": 2})
    before = world_of([nodes[0], replace(nodes[4], role="reader"), *nodes[2:4]], limits=limits)
    assert names(before) == ["node0", "node2", "node3", "node4"]
    after = world_of([nodes[0], nodes[1], nodes[3], nodes[4]], before, limits)
    assert [(node.node, node.role) for node in after.nodes] == [
        ("node0", "trainer"),
        ("node4", "watcher"),
        ("node3", "watcher"),
        ("node1", "reader"),
    ]
    swapped = [action for action in opening_notes(after, "why", before) if isinstance(action, Note)][1:]
    instead = [(note.metadata["node"], note.metadata["instead_of"]) for note in swapped]
    assert instead == [("node4", "node2"), ("node1", "node4")]


@pytest.mark.parametrize(
    ("here", "swaps"),
    [
        ([0, 1, 2, 3], []),
        ([0, 2, 3], []),
        ([0, 2, 3, 5], [("node5", "node1")]),
        ([2, 4, 5], [("node4", "node0"), ("node5", "node1")]),
    ],
)
def test_it_is_noted_who_takes_whose_place(here: list[int], swaps: list[tuple[str, str]]) -> None:
    nodes = seats([1] * 6)
    before = world_of(nodes[:4])
    after = world_of([nodes[index] for index in here], before)
    notes = [action for action in opening_notes(after, "why", before) if isinstance(action, Note)]
    assert [note.name for note in notes] == ["attempt.opened", *["spare.swapped_in"] * len(swaps)]
    assert [(note.metadata["node"], note.metadata["instead_of"]) for note in notes[1:]] == swaps


def test_the_store_is_on_the_newcomer_that_has_rank_0() -> None:
    nodes = seats([1] * 3)
    (role,) = world_of(nodes[1:], world_of(nodes[:2])).roles
    assert (role.master_node, role.master) == ("node2", Endpoint(address="10.0.0.2", port=102))


def test_the_store_of_a_role_of_its_own_is_on_its_first_node_in_the_order_of_the_ranks() -> None:
    nodes = seats([1] * 4, ["trainer", "reader", "reader", "reader"])
    restarts = {"reader": "restart_role"}
    world: World | None = None
    for here in (nodes[:3], [nodes[0], nodes[2], nodes[3]]):
        world = assign_worker_ranks(
            here, run="run", attempt=1, allocation=1, head="node0", restarts=restarts, before=world
        )
    assert world is not None
    assert names(world) == ["node0", "node3", "node2"]
    assert {role.role: role.master_node for role in world.roles} == {"trainer": "node0", "reader": "node3"}


def _with_place(seat: Seat, world: World) -> Seat:
    place = next((node for node in world.nodes if node.node == seat.node), None)
    return seat if place is None else replace(seat, role=place.role, workers=place.workers)


NODES = st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["trainer", "reader"])), min_size=1, max_size=10)


@given(NODES, st.data())
def test_no_rank_of_a_node_that_stays_changes_if_every_hole_is_filled(
    nodes: list[tuple[int, str]], data: st.DataObject
) -> None:
    taken = seats([count for count, _ in nodes], [role for _, role in nodes])
    gone = data.draw(st.sets(st.sampled_from(taken)))
    likes = data.draw(st.permutations(sorted(gone, key=lambda seat: seat.node_id)))
    newcomers = seats([seat.workers for seat in likes], [seat.role for seat in likes], range(50, 50 + len(likes)))
    before = world_of(taken)
    limits = NodeLimits(all_nodes=len(taken), of_role=Counter(seat.role for seat in taken))
    after = world_of([*newcomers, *(seat for seat in taken if seat not in gone)], before, limits)
    stay = {seat.node for seat in taken if seat not in gone}
    assert {node: rank for node, rank in first_ranks(before).items() if node in stay} == {
        node: rank for node, rank in first_ranks(after).items() if node in stay
    }
    assert [(rank.role, rank.role_rank, rank.local_rank) for rank in before.ranks] == [
        (rank.role, rank.role_rank, rank.local_rank) for rank in after.ranks
    ]


@given(
    st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["trainer", "reader"])), min_size=1, max_size=12),
    st.fixed_dictionaries({"trainer": st.integers(1, 8), "reader": st.integers(1, 8)}),
    st.data(),
)
def test_worlds_that_follow_one_another_keep_the_order_and_are_as_large_as_they_can_be(
    nodes: list[tuple[int, str]], of_role: dict[str, int], data: st.DataObject
) -> None:
    everybody = seats([count for count, _ in nodes], [role for _, role in nodes])
    limits = NodeLimits(all_nodes=sum(of_role.values()), of_role=of_role)
    before: World | None = None
    for _ in range(4):
        here = data.draw(st.lists(st.sampled_from(everybody), min_size=1, unique=True))
        world = world_of(here, before, limits)
        assert assigned(world) == torchs_assignments(world.nodes)
        assert [rank.rank for rank in world.ranks] == list(range(sum(node.workers for node in world.nodes)))
        counts = Counter(seat.role for seat in here)
        sizes = Counter(node.role for node in world.nodes)
        spares = sum(max(0, count - of_role[role]) for role, count in counts.items())
        for role, most in of_role.items():
            own = min(counts[role], most)
            holes = 0 if before is None else max(0, sum(node.role == role for node in before.nodes) - own)
            assert own <= sizes[role] <= min(most, own + min(spares, holes))
        places = sum(sizes.values()) - sum(min(counts[role], most) for role, most in of_role.items())
        assert before is None or places <= spares
        everybody = [_with_place(seat, world) for seat in everybody]  # as the head's roster has them
        present = {seat.node for seat in here}
        if before is None:
            assert [node.node_id for node in world.nodes] == sorted(node.node_id for node in world.nodes)
        else:
            stayed = [node for node in names(before) if node in present]
            assert [node for node in names(world) if node in stayed] == stayed
        before = world


def test_a_head_that_is_one_too_many_takes_part_and_another_node_waits() -> None:
    """Only a member of the latest world may open the next attempt."""
    limits = NodeLimits(all_nodes=2)
    world = assign_worker_ranks(
        seats([1, 1, 1]), run="run", attempt=1, allocation=1, head="node2", restarts={}, limits=limits
    )
    assert names(world) == ["node0", "node2"]


def test_a_spare_that_is_head_takes_a_free_place_before_spares_of_lower_id() -> None:
    nodes = seats([1] * 3)
    before = world_of(nodes[:1])
    world = assign_worker_ranks(
        nodes[1:],
        run="run",
        attempt=2,
        allocation=1,
        head="node2",
        restarts={},
        before=before,
        limits=NodeLimits(all_nodes=1, of_role={}),
    )
    assert names(world) == ["node2"]
