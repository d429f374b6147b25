"""What a member says of its own part: the node's result, the event of a failure, the line about its ranks."""

from __future__ import annotations

from collections.abc import Mapping

from hpc_elastic.membership.actions import Note
from hpc_elastic.membership.messages import Assign
from hpc_elastic.rank_set import format_ranks
from hpc_elastic.rundir.records import FailureRecord, NodeResult, WorkerState


def node_result(
    run: str,
    node: str,
    assign: Assign,
    state: WorkerState,
    *,
    reason: str,
    pids: Mapping[str, int],
    failures: Mapping[str, FailureRecord],
    unkillable: tuple[int, ...] = (),
) -> NodeResult:
    """Return the record of a node's part in an attempt, with its times left empty."""
    return NodeResult(
        run=run,
        attempt=assign.attempt,
        node=node,
        state=state,
        role=assign.role,
        ranks=tuple(range(assign.first_rank, assign.first_rank + assign.workers)),
        pids=dict(pids),
        reason=reason,
        failures=dict(failures),
        return_values={},
        unkillable=unkillable,
        started="",
        ended=None if state.is_running else "",
    )


def failure_note(failure: FailureRecord) -> Note:
    """Return the event of a worker's failure."""
    return Note(
        name="worker.failed",
        message=failure.message,
        attempt=failure.attempt,
        metadata={
            "rank": failure.rank,
            "exitcode": failure.exitcode,
            "signal": failure.signal_name,
            "class": failure.failure_class,
        },
    )


def describe_assign(assign: Assign) -> str:
    """Return the line about a node's part in the world after a rendezvous, with torch's names for its numbers."""
    workers = range(assign.workers)
    numbers = {
        "restart_count": assign.attempt - 1,  # as in TORCHELASTIC_RESTART_COUNT
        "master_addr": assign.master.address,
        "master_port": assign.master.port,
        "group_rank": assign.group_rank,
        "group_world_size": assign.group_world_size,
        "local_ranks": format_ranks(workers),
        "role_ranks": format_ranks(assign.first_role_rank + worker for worker in workers),
        "global_ranks": format_ranks(assign.first_rank + worker for worker in workers),
        "role_world_size": assign.role_world_size,
        "global_world_size": assign.world_size,
    }
    listed = " ".join(f"{name}={value}" for name, value in numbers.items())
    return f"[{assign.role}] rendezvous complete for attempt {assign.attempt}: {listed}"
