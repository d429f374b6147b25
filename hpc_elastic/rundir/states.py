"""The states of a run and of a worker group, and how long a blame lasts; `status` needs no more of records."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import overload

FORGETS_AFTER = 3  # allocations, after which a node is blamed no more: who mends nodes has had time by then


class RunState(str, Enum):
    """The state of a run; the first four states are final, and `result.json` has one of them."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    UNKNOWN = "UNKNOWN"
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    REQUEUED = "REQUEUED"

    @property
    def is_final(self) -> bool:
        """Whether a run in this state is over."""
        return self in _FINAL


_FINAL = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED, RunState.UNKNOWN})


class _IsRunning:
    """A descriptor for both `state.is_running` and `WorkerState.is_running(state)`, which torch's callers write."""

    @overload
    def __get__(self, state: None, owner: type[WorkerState]) -> Callable[[WorkerState], bool]: ...

    @overload
    def __get__(self, state: WorkerState, owner: type[WorkerState]) -> bool: ...

    def __get__(self, state: WorkerState | None, owner: type[WorkerState]) -> Callable[[WorkerState], bool] | bool:
        return _has_processes if state is None else _has_processes(state)


class _Running:
    is_running = _IsRunning()  # in an enum's own body type checkers would take it for a member


class WorkerState(str, _Running, Enum):
    """A worker group's state, with torch.distributed.elastic's members and meaning.

    UNKNOWN: the agent lost track of its workers, which cannot be mended. INIT: not started yet.
    HEALTHY: the workers run. UNHEALTHY: one of them has failed, and the others run still. STOPPED: the agent
    stopped them, for a restart perhaps. SUCCEEDED: every worker exited 0. FAILED: one did not.

    `is_running`: whether there are worker processes, as in torch: in HEALTHY and UNHEALTHY.
    """

    UNKNOWN = "UNKNOWN"
    INIT = "INIT"
    HEALTHY = "HEALTHY"
    UNHEALTHY = "UNHEALTHY"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


def _has_processes(state: WorkerState) -> bool:
    return state in (WorkerState.HEALTHY, WorkerState.UNHEALTHY)
