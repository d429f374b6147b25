"""Ranks are torch's: 1,000 random layouts of roles and uneven workers against its `_assign_worker_ranks`."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("torch", reason="there is no torch")


from hpc_elastic.elastic import Worker, WorkerGroup, WorkerSpec
from hpc_elastic.elastic.group import NodeRanks
from hpc_elastic.integrations.torch_types import from_torch_worker
from hpc_elastic.membership.ranks import Seat
from hpc_elastic.membership.ranks import assign_worker_ranks as assign_ranks
from hpc_elastic.membership.rounds import assignments
from hpc_elastic.rundir.records import Endpoint
from tests.differential.torch_elastic import assign_worker_ranks

LAYOUTS = 1000
ROLES = ("trainer", "reader", "evaluator", "parameter_server")

Layout = list[tuple[str, int]]


def random_layout(seed: int) -> Layout:
    """Up to 12 nodes with up to 9 workers each; roles come in any order, so that they are interleaved."""
    chance = random.Random(seed)
    roles = ROLES[: chance.randint(1, len(ROLES))]
    return [(chance.choice(roles), chance.randint(1, 9)) for _ in range(chance.randint(1, 12))]


def our_workers(layout: Layout, shuffle: random.Random) -> list[list[Worker]]:
    """The workers of each node, from the roster of a head that the nodes joined in any order."""
    seats = [
        Seat(
            node=f"node{node_id}",
            node_id=node_id,
            agent=Endpoint(address=f"10.0.0.{node_id}", port=1),
            store_port=100,
            workers=workers,
            role=role,
        )
        for node_id, (role, workers) in enumerate(layout)
    ]
    shuffle.shuffle(seats)
    world = assign_ranks(seats, run="run", attempt=1, allocation=1, head="node0", restarts={})
    parts = assignments(world, "")
    workers = []
    for node_id, (role, count) in enumerate(layout):
        part = parts[f"node{node_id}"]
        ranks = NodeRanks(
            group_rank=part.group_rank,
            group_world_size=part.group_world_size,
            first_global_rank=part.first_rank,
            world_size=part.world_size,
            first_role_rank=part.first_role_rank,
            role_world_size=part.role_world_size,
        )
        spec = WorkerSpec(role=role, local_world_size=count, entrypoint="train.py")
        workers.append(list(WorkerGroup(spec).assigned(ranks, part.master).workers))
    return workers


def torchs_workers(layout: Layout) -> list[list[Worker]]:
    return [[from_torch_worker(worker) for worker in workers] for workers in assign_worker_ranks(layout)]


# In parts, so that a failure comes soon and they can run side by side.
@pytest.mark.long
@pytest.mark.parametrize("first", range(0, LAYOUTS, 100))
def test_every_worker_has_torchs_ranks_and_sizes(first: int) -> None:
    for seed in range(first, first + 100):
        layout = random_layout(seed)
        assert our_workers(layout, random.Random(seed)) == torchs_workers(layout), f"seed {seed}: {layout}"


def test_layouts_are_of_every_kind() -> None:
    """Else the test above would say little."""
    layouts = [random_layout(seed) for seed in range(LAYOUTS)]
    counts = [{count for _, count in layout} for layout in layouts]
    assert sum(len({role for role, _ in layout}) > 1 for layout in layouts) > LAYOUTS / 2
    assert sum(len(uneven) > 1 for uneven in counts) > LAYOUTS / 2
    assert sum(is_interleaved([role for role, _ in layout]) for layout in layouts) > LAYOUTS / 4
    assert sum(len(layout) == 1 for layout in layouts) > 10


def is_interleaved(roles: list[str]) -> bool:
    """Whether a role goes on after another one came between."""
    starts = [role for index, role in enumerate(roles) if index == 0 or roles[index - 1] != role]
    return len(starts) > len(set(starts))


def test_torchs_own_example_of_two_roles() -> None:
    """torch's test of `_assign_worker_ranks`: trainers between two nodes of parameter servers."""
    layout = [("parameter_server", 4), ("trainer", 1), ("trainer", 2), ("trainer", 3), ("parameter_server", 5)]
    rows = [
        [
            (worker.local_rank, worker.role_rank, worker.global_rank, worker.world_size, worker.role_world_size)
            for worker in workers
        ]
        for workers in our_workers(layout, random.Random(0))
    ]
    assert rows[0] == [(0, 0, 0, 15, 9), (1, 1, 1, 15, 9), (2, 2, 2, 15, 9), (3, 3, 3, 15, 9)]
    assert rows[1:3] == [[(0, 0, 4, 15, 6)], [(0, 1, 5, 15, 6), (1, 2, 6, 15, 6)]]
    assert rows[3] == [(0, 3, 7, 15, 6), (1, 4, 8, 15, 6), (2, 5, 9, 15, 6)]
    assert rows[4] == [(index, 4 + index, 10 + index, 15, 9) for index in range(5)]
