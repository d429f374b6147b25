"""The events of a worker group's life, with the names and keys of torch's `_construct_event`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpc_elastic.elastic.group import Worker, WorkerGroup
from hpc_elastic.rundir.records import Event, EventSource, NodeResult, WorkerState

EVENT_NAME = "torchelastic.worker.status.{state}"
RENDEZVOUS_BACKEND = "hpc-elastic"

# States of an event that no worker group is ever in, beside the names of `WorkerState`.
START = "START"
TERMINATED = "TERMINATED"
RENDEZVOUS = "RENDEZVOUS"
ASSIGN_WORKER_RANKS = "ASSIGN_WORKER_RANKS"

# The keys of an event's metadata, and of the JSON text in its `metadata`, those of a worker last.
METADATA_KEYS = (
    *("run_id", "global_rank", "group_rank", "worker_id", "role", "hostname", "state", "total_run_time"),
    *("rdzv_backend", "raw_error", "metadata", "agent_restarts", "duration_ms"),
)
GROUP_KEYS = ("group_world_size", "entry_point")
WORKER_KEYS = ("local_rank", "role_rank", "role_world_size", "exit_code", "worker_pid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """When and where an event is recorded.

    `run_time_s` is how long the agent has run; torch says 0 until its end. `restarts` is how many were used.
    """

    time_ns: int
    run: str
    node: str
    hostname: str
    allocation: int
    attempt: int
    restarts: int
    run_time_s: float = 0.0


def construct_event(
    group: WorkerGroup,
    moment: Moment,
    *,
    state: str,
    source: EventSource,
    worker: Worker | None = None,
    raw_error: str | None = None,
    duration_ms: float | None = None,
    exit_code: int | None = None,
    worker_pid: int | None = None,
) -> Event:
    """Return an event as torch's agent constructs it.

    The values of a worker in `metadata` are lists of one, because torch's are: what reads its events reads ours.

    Args:
        group: the node's workers.
        moment: when and where.
        state: the end of the event's name: a state's name, or one of this module's constants.
        source: whom it is about.
        worker: which worker, if it is about one.
        raw_error: JSON of the error file, or a traceback.
        duration_ms: of what the event is the end of, in milliseconds.
        exit_code: of the worker, negative for a signal.
        worker_pid: its process id.
    """
    metadata = {
        "run_id": moment.run,
        "global_rank": worker.global_rank if worker is not None else None,
        "group_rank": group.group_rank,
        "worker_id": str(worker.id) if worker is not None else None,
        "role": group.spec.role,
        "hostname": moment.hostname,
        "state": state,
        "total_run_time": int(moment.run_time_s),
        "rdzv_backend": RENDEZVOUS_BACKEND,
        "raw_error": raw_error,
        "metadata": json.dumps(_details(group, worker, exit_code, worker_pid)),
        "agent_restarts": moment.restarts,
        "duration_ms": duration_ms,
    }
    return Event(
        time_ns=moment.time_ns,
        run=moment.run,
        node=moment.node,
        allocation=moment.allocation,
        attempt=moment.attempt,
        name=EVENT_NAME.format(state=state),
        message=_message(group, worker, state, duration_ms),
        source=source,
        metadata=metadata,
    )


def worker_events(
    group: WorkerGroup, moment: Moment, result: NodeResult, *, errors: Mapping[str, str | None]
) -> list[Event]:
    """Return the events of how each worker of a node ended, as torch's `_record_worker_events`.

    Args:
        group: the node's workers.
        moment: when and where.
        result: the node's record of the attempt.
        errors: by global rank, the JSON of the error files of those that failed.
    """
    events = []
    for worker in group.workers:
        failure = result.failures.get(str(worker.global_rank))
        events.append(
            construct_event(
                group,
                moment,
                state=worker_state(worker, result),
                source=EventSource.WORKER,
                worker=worker,
                raw_error=errors.get(str(worker.global_rank)) if failure else None,
                exit_code=failure.exitcode if failure else None,
                worker_pid=failure.pid if failure else None,
            )
        )
    return events


def worker_state(worker: Worker, result: NodeResult) -> str:
    """SUCCEEDED, FAILED or TERMINATED: how a worker ended, as torch's `_get_worker_state`.

    A worker that neither failed nor belongs to a group that succeeded was ended by the agent; so was
    one that exited 0 before another one failed, because a group succeeds as a whole or not at all.
    torch has no word for the workers of a group that was stopped without a failure; they are TERMINATED too.
    """
    if str(worker.global_rank) in result.failures:
        return WorkerState.FAILED.value
    return WorkerState.SUCCEEDED.value if result.state is WorkerState.SUCCEEDED else TERMINATED


def _details(
    group: WorkerGroup, worker: Worker | None, exit_code: int | None, worker_pid: int | None
) -> dict[str, Any]:
    details: dict[str, Any] = {
        "group_world_size": group.group_world_size,
        "entry_point": group.spec.get_entrypoint_name(),
    }
    if worker is not None:
        details["local_rank"] = [worker.local_rank]
        details["role_rank"] = [worker.role_rank]
        details["role_world_size"] = [worker.role_world_size]
        details["exit_code"] = [exit_code]
        details["worker_pid"] = [worker_pid]
    return details


def _message(group: WorkerGroup, worker: Worker | None, state: str, duration_ms: float | None) -> str:
    who = f"{group.spec.role} rank {worker.global_rank}" if worker is not None else group.spec.role
    return f"{who}: {state}" if duration_ms is None else f"{who}: {state} took {duration_ms:.0f} ms"
