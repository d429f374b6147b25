"""Which node has which role, and how many workers."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from hpc_elastic.plan.launch_plan import dump_plan, parse_plan
from hpc_elastic.plan.roles import NodesPlan, RolePlan, place_roles, store_nodes
from tests.plans import make_plan, make_role

TRAINER = make_role("trainer", NodesPlan(min=2, max=4), (4, 2, 1))
READER = make_role("reader", NodesPlan(min=1, max=2), 3, restart="restart_role", env={"A": "1"})


def names(roles: tuple[RolePlan, ...]) -> list[str]:
    return [role.name for role in roles]


@pytest.mark.parametrize(
    ("count", "trainers", "readers"),
    [(0, 0, 0), (1, 1, 0), (2, 2, 0), (3, 2, 1), (4, 3, 1), (5, 4, 1), (6, 4, 2), (7, 4, 3), (9, 4, 5)],
)
def test_every_role_gets_its_min_then_the_rest_fills_role_by_role(count: int, trainers: int, readers: int) -> None:
    assert names(place_roles((TRAINER, READER), count)) == ["trainer"] * trainers + ["reader"] * readers


RANGES = [NodesPlan(min=low, max=high) for low in range(1, 4) for high in range(low, 4)]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_each_role_gets_between_min_and_max_in_one_piece_and_in_order(number: int) -> None:
    for ranges in itertools.product(RANGES, repeat=number):
        roles = tuple(make_role(f"role{index}", nodes) for index, nodes in enumerate(ranges))
        least, most = sum(nodes.min for nodes in ranges), sum(nodes.max for nodes in ranges)
        for count in range(least, most + 1):
            placed = place_roles(roles, count)
            assert len(placed) == count
            assert names(placed) == sorted(names(placed))
            sizes = [names(placed).count(role.name) for role in roles]
            assert all(nodes.min <= size <= nodes.max for nodes, size in zip(ranges, sizes, strict=True))
            assert place_roles(roles, count) == placed
        assert len(place_roles(roles, least - 1)) == least - 1
        assert len(place_roles(roles, most + 1)) == most + 1


def test_workers_go_by_the_place_among_the_roles_nodes_and_the_last_number_serves_the_rest() -> None:
    plan = make_plan(roles=(READER, TRAINER))
    assert [plan.workers_on(node, 6) for node in range(6)] == [3, 3, 4, 2, 1, 1]
    assert [plan.workers_on(node, 3) for node in range(3)] == [3, 4, 2]
    assert [plan.role_on(node, 4).name for node in range(4)] == ["reader", "reader", "trainer", "trainer"]
    assert plan.most_workers_on_a_node == 4


def test_roles_survive_the_way_through_the_file() -> None:
    plan = make_plan(roles=(TRAINER, READER))
    assert parse_plan(dump_plan(plan)) == plan


def test_a_role_that_restarts_alone_has_its_store_on_its_own_first_node() -> None:
    plain = replace(READER, restart="ignore")
    assert store_nodes((TRAINER, plain), 4) == {0}
    assert store_nodes((TRAINER, READER), 4) == {0, 3}
    assert store_nodes((READER, TRAINER), 6) == {0, 2}
    assert store_nodes((READER,), 2) == {0}
