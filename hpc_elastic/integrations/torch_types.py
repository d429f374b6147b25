"""Converts our records to torch.distributed.elastic's own objects and back, for code that was written against torch.

This module imports torch. A WorkerSpec is not converted: torch's cannot be made without its rendezvous handler.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from torch.distributed.elastic.agent.server import api
from torch.distributed.elastic.events import api as torch_events
from torch.distributed.elastic.metrics import api as torch_metrics
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from hpc_elastic.elastic.group import Worker
from hpc_elastic.rundir.records import (
    Event,
    EventSource,
    FailureRecord,
    MetricData,
    NodeResult,
    RunResultRecord,
    RunState,
    WorkerState,
)

# The worker group state for the end of a run: a run that a person cancelled is STOPPED, as when torch's agent stops.
_STATE_OF_A_RUN = {
    RunState.SUCCEEDED: WorkerState.SUCCEEDED,
    RunState.FAILED: WorkerState.FAILED,
    RunState.CANCELLED: WorkerState.STOPPED,
}
_NOT_AVAILABLE = "<N/A>"  # what torch writes for an error file that is not there


def to_torch_state(state: WorkerState) -> Any:
    """Return torch's WorkerState of the same name."""
    return api.WorkerState[state.name]


def from_torch_state(state: Any) -> WorkerState:
    """Return our WorkerState of the same name."""
    return WorkerState[state.name]


def to_torch_worker(worker: Worker) -> Any:
    """Return torch's Worker with the same ranks, sizes and id."""
    made = api.Worker(
        worker.local_rank,
        global_rank=worker.global_rank,
        role_rank=worker.role_rank,
        world_size=worker.world_size,
        role_world_size=worker.role_world_size,
    )
    made.id = worker.id
    return made


def from_torch_worker(worker: Any) -> Worker:
    """Return our Worker with the same ranks, sizes and id."""
    return Worker(
        worker.local_rank,
        global_rank=worker.global_rank,
        role_rank=worker.role_rank,
        world_size=worker.world_size,
        role_world_size=worker.role_world_size,
        id=worker.id,
    )


def to_torch_failure(failure: FailureRecord) -> Any:
    """Return torch's ProcessFailure, which reads the error file itself if it is still there.

    If it is not there, message and time are the record's, instead of those that torch would make up.
    """
    has_file = os.path.isfile(failure.error_file)
    made = ProcessFailure(
        local_rank=failure.local_rank, pid=failure.pid, exitcode=failure.exitcode, error_file=failure.error_file
    )
    if not has_file:
        made.message = failure.message
        made.timestamp = int(failure.timestamp)
    return made


def from_torch_failure(failure: Any, *, rank: int, role: str, node: str, attempt: int) -> FailureRecord:
    """Return our record of torch's ProcessFailure, which does not have the rank, role, node and attempt."""
    message = failure.message
    if isinstance(message, dict):  # written by torch's @record: the message and where it comes from
        message = message.get("message", "")
    is_signal = failure.exitcode < 0
    has_file = failure.error_file != _NOT_AVAILABLE
    return FailureRecord(
        rank=rank,
        local_rank=failure.local_rank,
        role=role,
        node=node,
        attempt=attempt,
        pid=failure.pid,
        exitcode=failure.exitcode,
        signal_name=failure.signal_name() if is_signal else None,
        error_file=failure.error_file if has_file else "",
        message=str(message),
        timestamp=float(failure.timestamp),
        failure_class="signal" if is_signal else "exception" if has_file else "exit_code",
    )


def to_torch_result(result: NodeResult | RunResultRecord, values: Mapping[int, Any] | None = None) -> Any:
    """Return torch's RunResult, of one node, as torch's agent returns it, or of the whole run.

    Args:
        result: the record.
        values: the return values of the function, by global rank; the record only names their files. torch has
            an entry in `return_values` for every worker of an agent that succeeded, None if it was a script.
    """
    values = dict(values or {})
    if isinstance(result, RunResultRecord):
        state = _STATE_OF_A_RUN.get(result.state, WorkerState.UNKNOWN)
    else:
        state = result.state
        if state is WorkerState.SUCCEEDED:
            values = {rank: values.get(rank) for rank in result.ranks}
    return api.RunResult(
        state=to_torch_state(state),
        return_values=values,
        failures={int(rank): to_torch_failure(failure) for rank, failure in result.failures.items()},
    )


def to_torch_event(event: Event) -> Any:
    """Return torch's Event, with its time in milliseconds.

    Raises:
        ValueError: the event has no source: it is one of our own, which torch's agent does not have.
    """
    if event.source is None:
        raise ValueError(f"{event.name}: expected an event of a worker group's life, with a source, found none")
    return torch_events.Event(
        name=event.name,
        source=torch_events.EventSource[event.source.name],
        timestamp=event.time_ns // 1_000_000,
        metadata=dict(event.metadata),
    )


def from_torch_event(event: Any, *, run: str, node: str, allocation: int, attempt: int) -> Event:
    """Return our record of torch's Event, which does not have the node, allocation and attempt."""
    return Event(
        time_ns=event.timestamp * 1_000_000,
        run=run,
        node=node,
        allocation=allocation,
        attempt=attempt,
        name=event.name,
        message="",
        source=EventSource[event.source.name],
        metadata=dict(event.metadata),
    )


def to_torch_metric(metric: MetricData) -> Any:
    """Return torch's MetricData, which does not have the node where it was measured."""
    return torch_metrics.MetricData(metric.timestamp, metric.group_name, metric.name, metric.value)
