"""Groups, moments and node records for the tests of torch's words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpc_elastic.elastic import WorkerGroup, WorkerSpec, WorkerState
from hpc_elastic.elastic.events import Moment
from hpc_elastic.elastic.group import NodeRanks
from hpc_elastic.rundir.records import Endpoint, FailureRecord, NodeResult

STORE = Endpoint(address="10.0.0.1", port=29500)
MOMENT = Moment(
    time_ns=7_000_000_000,
    run="digits",
    node="node1",
    hostname="node1.cluster",
    allocation=1,
    attempt=3,
    restarts=2,
    run_time_s=12.9,
)


def make_spec(workers: int = 2, *, role: str = "trainer", max_restarts: int = 3) -> WorkerSpec:
    return WorkerSpec(role=role, local_world_size=workers, entrypoint="train.py", max_restarts=max_restarts)


def make_group(workers: int = 2, *, first: int = 4, world: int = 8, role_first: int = 2, role: int = 4) -> WorkerGroup:
    """A group that runs: the second of three nodes, with process ids from 100."""
    ranks = NodeRanks(
        group_rank=1,
        group_world_size=3,
        first_global_rank=first,
        world_size=world,
        first_role_rank=role_first,
        role_world_size=role,
    )
    return WorkerGroup(make_spec(workers)).assigned(ranks, STORE).started({rank: 100 + rank for rank in range(workers)})


def make_failure(rank: int, *, exitcode: int = 1, error_file: str = "", message: str = "it broke") -> FailureRecord:
    return FailureRecord(
        rank=rank,
        local_rank=rank % 2,
        role="trainer",
        node="node1",
        attempt=3,
        pid=100 + rank % 2,
        exitcode=exitcode,
        signal_name="SIGKILL" if exitcode == -9 else None,
        error_file=error_file,
        message=message,
        timestamp=1795177528.25,
        failure_class="signal" if exitcode < 0 else "exception",
    )


def node_record(
    state: WorkerState, *, ranks: Sequence[int] = (4, 5), failures: Mapping[str, FailureRecord] | None = None
) -> NodeResult:
    return NodeResult(
        run="digits",
        attempt=3,
        node="node1",
        state=state,
        role="default",
        ranks=tuple(ranks),
        pids={},
        reason="because",
        failures=failures or {},
        return_values={},
        started="",
        ended="",
    )
