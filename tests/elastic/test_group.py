"""A WorkerGroup goes through what torch's own tests ask of theirs, as values."""

from __future__ import annotations

import dataclasses

import pytest

from hpc_elastic.elastic import Worker, WorkerGroup, WorkerSpec, WorkerState
from hpc_elastic.elastic.group import NodeRanks
from hpc_elastic.errors import WorkerSpecError
from hpc_elastic.rundir.records import Endpoint
from tests.elastic.builders import STORE, make_spec


def ranks_of(group_rank: int, nodes: int, workers: int) -> NodeRanks:
    """The ranks of a node among even ones with one role."""
    return NodeRanks(
        group_rank=group_rank,
        group_world_size=nodes,
        first_global_rank=group_rank * workers,
        world_size=nodes * workers,
        first_role_rank=group_rank * workers,
        role_world_size=nodes * workers,
    )


def test_new_group_is_in_init_and_knows_local_ranks_alone() -> None:
    group = WorkerGroup(make_spec(4, max_restarts=50))
    assert group.state is WorkerState.INIT
    assert [worker.local_rank for worker in group.workers] == [0, 1, 2, 3]
    for worker in group.workers:
        assert (worker.global_rank, worker.role_rank, worker.world_size, worker.role_world_size) == (-1, -1, -1, -1)
        assert worker.id is None
    assert (group.group_rank, group.group_world_size, group.store) == (None, None, None)
    assert (group.master_addr, group.master_port) == (None, None)


def test_worker_reads_as_torchs() -> None:
    worker = Worker(1, global_rank=5, role_rank=3, world_size=8, role_world_size=4, id=77)
    text = "local_rank=1,global_rank=5,role_rank=3,world_size=8,role_world_size=4"
    assert (str(worker), repr(worker)) == (text, text)


@pytest.mark.parametrize(("group_rank", "nodes"), [(0, 1), (0, 3), (2, 3)])
def test_rendezvous_gives_every_worker_its_ranks_and_no_id(group_rank: int, nodes: int) -> None:
    group = WorkerGroup(make_spec(8)).assigned(ranks_of(group_rank, nodes, 8), STORE)
    assert (group.group_rank, group.group_world_size) == (group_rank, nodes)
    assert (group.master_addr, group.master_port, group.store) == (STORE.address, STORE.port, STORE)
    for worker in group.workers:
        assert worker.id is None
        assert (worker.world_size, worker.role_world_size) == (8 * nodes, 8 * nodes)
        assert worker.global_rank == worker.role_rank == 8 * group_rank + worker.local_rank


def test_a_master_of_the_spec_outranks_that_of_the_rendezvous() -> None:
    spec = dataclasses.replace(make_spec(), master_addr="192.0.2.7", master_port=4000)
    group = WorkerGroup(spec).assigned(ranks_of(0, 1, 2), STORE)
    assert (group.master_addr, group.master_port, group.store) == ("192.0.2.7", 4000, STORE)


def test_started_group_is_healthy_and_each_worker_has_its_id() -> None:
    group = WorkerGroup(make_spec(3)).assigned(ranks_of(0, 1, 3), STORE).started({2: 12, 0: 10, 1: 11})
    assert group.state is WorkerState.HEALTHY
    assert [worker.id for worker in group.workers] == [10, 11, 12]


def test_group_is_not_started_if_a_worker_has_no_process() -> None:
    with pytest.raises(WorkerSpecError, match="found none for local rank 1, 2"):
        WorkerGroup(make_spec(3)).assigned(ranks_of(0, 1, 3), STORE).started({0: 10, 2: None})


def test_restart_after_restart_leaves_the_group_healthy_with_new_ids() -> None:
    group = WorkerGroup(make_spec(2))
    for attempt in range(3):
        group = group.entered(WorkerState.STOPPED).assigned(ranks_of(attempt, 3, 2), STORE)
        assert [worker.id for worker in group.workers] == [None, None]
        group = group.started({0: 10 * attempt, 1: 10 * attempt + 1})
        assert group.state is WorkerState.HEALTHY
        assert [worker.global_rank for worker in group.workers] == [2 * attempt, 2 * attempt + 1]
        assert [worker.id for worker in group.workers] == [10 * attempt, 10 * attempt + 1]


def test_each_step_leaves_the_group_before_it_as_it_was() -> None:
    first = WorkerGroup(make_spec(2))
    first.assigned(ranks_of(0, 1, 2), STORE).started({0: 1, 1: 2})
    assert first == WorkerGroup(make_spec(2))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"first_global_rank": 1}, "global ranks 1 to 2 of 2"),
        ({"first_global_rank": -1}, "global ranks -1 to 0 of 2"),
        ({"role_world_size": 1}, "role ranks 0 to 1 of 1"),
        ({"group_rank": 1}, "group rank 1 of 1"),
    ],
)
def test_group_rejects_ranks_outside_the_world(wrong: dict[str, int], message: str) -> None:
    ranks = dataclasses.replace(ranks_of(0, 1, 2), **wrong)
    with pytest.raises(WorkerSpecError, match=message):
        WorkerGroup(make_spec(2)).assigned(ranks, Endpoint(address="::1", port=1))


def test_states_that_are_running_are_healthy_and_unhealthy_alone() -> None:
    """INIT is a group that was made and not started: there is no process yet."""
    running = [state for state in WorkerState if state.is_running]
    assert running == [WorkerState.HEALTHY, WorkerState.UNHEALTHY]
    assert running == [state for state in WorkerState if WorkerState.is_running(state)]


def test_worker_states_are_seven() -> None:
    assert len(WorkerState) == 7
    assert isinstance(make_spec(), WorkerSpec)
