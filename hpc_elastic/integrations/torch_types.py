"""Our records as torch.distributed.elastic's own objects, and back: for code that was written against torch.

This module imports torch. Nothing converts a WorkerSpec: torch's cannot be without its rendezvous handler.
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
    RunResult,
    RunState,
    WorkerState,
)

# A run's end as the state of a worker group: a person's stop is torch's, whose agent stops its workers.
_STATE_OF_A_RUN = {
    RunState.SUCCEEDED: WorkerState.SUCCEEDED,
    RunState.FAILED: WorkerState.FAILED,
    RunState.CANCELLED: WorkerState.STOPPED,
}
_NOT_AVAILABLE = "<N/A>"  # what torch writes for an error file that is not there


def to_torch_state(state: WorkerState) -> Any:
    """Torch's member of the same name."""
    return api.WorkerState[state.name]


def from_torch_state(state: Any) -> WorkerState:
    """Our member of the same name."""
    return WorkerState[state.name]


def to_torch_worker(worker: Worker) -> Any:
    """Torch's Worker with the same ranks, sizes and id."""
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
    """Our Worker with the same ranks, sizes and id."""
    return Worker(
        worker.local_rank,
        global_rank=worker.global_rank,
        role_rank=worker.role_rank,
        world_size=worker.world_size,
        role_world_size=worker.role_world_size,
        id=worker.id,
    )


def to_torch_failure(failure: FailureRecord) -> Any:
    """Torch's ProcessFailure, which reads the error file itself if it is still there.

    Where it is not, message and time are the record's, and torch makes up none.
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
    """A record of torch's ProcessFailure; torch does not say which rank, role, node and attempt it was."""
    message = failure.message
    if isinstance(message, dict):  # of @record: the message and where it comes from
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


def to_torch_result(result: NodeResult | RunResult, values: Mapping[int, Any] | None = None) -> Any:
    """Torch's RunResult: of a node, which is what an agent of torch's returns, or of the whole run.

    Args:
        result: the record.
        values: what a function has returned, by global rank; the record only says in which files it is. torch has
            an entry in `return_values` for every worker of an agent that succeeded, None if it was a script.
    """
    values = dict(values or {})
    if isinstance(result, RunResult):
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
    """Torch's Event, its time in milliseconds.

    Raises:
        ValueError: the event has no source: it is one of ours that torch's agent has not.
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
    """A record of torch's Event; torch does not say where and in which attempt it was."""
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
    """Torch's MetricData, which does not say where it was measured."""
    return torch_metrics.MetricData(metric.timestamp, metric.group_name, metric.name, metric.value)
