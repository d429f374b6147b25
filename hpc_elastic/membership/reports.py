"""The records that a member writes about its own part: the node's result, and the event of a failure."""

from __future__ import annotations

from collections.abc import Mapping

from hpc_elastic.membership.actions import Note
from hpc_elastic.membership.messages import Assign
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
